//! Checks that the commands in the pages are commands of this program.

#[test]
fn every_command_in_the_pages_is_accepted() {
    fabricbios_testbed::pages::assert_accepted("fabricctl", 100, |words| {
        super::parse(words.iter().map(Into::into))
    });
}
