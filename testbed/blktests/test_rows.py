#!/usr/bin/python3
"""Tests of rows.py with output of `check` and texts of tests. The output has the form of blktests a608cb5 (2026-08-21)
if its standard output is no terminal."""
import pathlib
import tempfile
import unittest

import rows

OUTPUT = """\
nvme/900 (tr=tcp) (fill a device) \n\
    runtime  1.5s  ...
nvme/900 (tr=tcp) (fill a device)                            [passed]
    runtime  1.5s  ...  1.447s
nvme/901 (tr=tcp bd=device) (empty a device) \n\
nvme/901 (tr=tcp bd=device) (empty a device)                 [failed]
    runtime    ...  6.010s
    --- tests/nvme/901.out\t2026-11-21 09:00:00 +0000
    +++ /t/results/nodev_tr_tcp/nvme/901.out.bad\t2026-11-21 09:10:00 +0000
    @@ -1,2 +1,3 @@
     Running nvme/901
    +FAIL: no a|b
    +FAIL: no a|b
     Test complete
nvme/902 (tr=tcp) (count to (at least) three)                [failed]
    runtime    ...  7.010s
    --- tests/nvme/902.out\t2026-11-21 09:00:00 +0000
    +++ /t/results/nodev_tr_tcp/nvme/902.out.bad\t2026-11-21 09:10:00 +0000
    @@ -1,2 +1,1 @@
     Running nvme/902
    -three
nvme/903 => nvme0n1 (look at a device)                       [failed]
    runtime    ...  7.010s
    exited with status 1
nvme/904 (tr=tcp) (a large image)                            [not run]
    runtime    ...  0.010s
    NVME_IMG_SIZE must be at least 350m
    driver x is not available
"""

LIBRARY = """\
CFS="x"
_make_port() {
	mkdir "${NVMET_CFS}/ports/1"
}
_set_up() {
	if [[ -n "${nvme_target_control}" ]]; then
		return
	fi
	_make_port
}
_look() {
	cat "${NVMET_CFS}/ports/1/addr"
}
"""


def test_of(body, requires="_look"):
    """The text of a test."""
    return f'DESCRIPTION="do \'this\'"\nrequires() {{\n\t{requires}\n}}\n\ntest() {{\n\t{body}\n}}\n'


class Output(unittest.TestCase):
    def test_each_ended_test_has_a_row(self):
        self.assertEqual(rows.rows(OUTPUT), [
            ("nvme/900", "fill a device", "pass", ""),
            ("nvme/901", "empty a device", "fail", "FAIL: no a|b"),
            ("nvme/902", "count to (at least) three", "fail", "not printed: three"),
            ("nvme/903", "look at a device", "fail", "exited with status 1"),
            ("nvme/904", "a large image", "skip", "NVME_IMG_SIZE must be at least 350m; driver x is not available"),
        ])

    def test_a_test_that_did_not_end_has_none(self):
        self.assertEqual(rows.rows(OUTPUT.split("[passed]")[0]), [])

    def test_the_image_that_is_asked_for(self):
        self.assertEqual([350, None], [rows.image_needed(row[3]) for row in rows.rows(OUTPUT)[:2:-1]])


class Text(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.checkout = pathlib.Path(place.name)
        for name in ("common", "tests/nvme"):
            (self.checkout / name).mkdir(parents=True)
        (self.checkout / "common/nvme").write_text(LIBRARY, encoding="utf-8")
        (self.checkout / "tests/nvme/rc").write_text("group_setup() {\n\t:\n}\n", encoding="utf-8")

    def wires(self, text):
        (self.checkout / "tests/nvme/900").write_text(text, encoding="utf-8")
        return rows.wires(*rows.sources(self.checkout, "nvme/900"))

    def test_who_changes_configfs_is_found_through_the_functions_it_calls(self):
        self.assertEqual("_make_port", self.wires(test_of("_make_port")))
        self.assertEqual("test", self.wires(test_of('rmdir "${NVMET_CFS}/hosts/x"')))

    def test_what_asks_for_the_hook_or_only_looks_does_not_change_it(self):
        self.assertIsNone(self.wires(test_of("_set_up")))
        self.assertIsNone(self.wires(test_of("_look")))
        self.assertIsNone(self.wires(test_of("_look", requires="_make_port")))

    def test_what_a_test_says_of_itself(self):
        self.wires(test_of("_look").replace("test()", "test_device()"))
        self.assertEqual("do 'this'", rows.about(self.checkout, "nvme/900"))
        self.assertTrue(rows.wants_device(rows.sources(self.checkout, "nvme/900")[0]))


if __name__ == "__main__":
    unittest.main()
