//! The number of the newest commit that was reported, in memory.

use super::*;

/// A store with three commits of one boot, as SIGKILL of its process would leave it.
struct Killed {
    scene: Scene,
    counters: Counters,
    _memory: tempfile::TempDir,
    _store: Store,
}

impl Killed {
    fn new() -> Self {
        let (memory, running) = (tempfile::tempdir().unwrap(), Scene::new());
        let counters = Counters {
            directory: Some(memory.path().to_owned()),
            ..on("this boot")
        };
        let opened = Store::open(&running.path(), counters.clone(), Arc::default());
        let (mut store, _) = opened.unwrap();
        for id in 1..=3 {
            let change = put(id, "value");
            let number = store.commit([(change.key, change.value)].into());
            assert_eq!(number.unwrap(), u64::try_from(id).unwrap());
        }
        Self {
            scene: running.copy(),
            counters,
            _memory: memory,
            _store: store,
        }
    }

    /// Changes the sector of the commit with this number; each has one.
    fn damage(&self, commit: usize, with: impl Fn(&mut [u8])) {
        let mut log = fs::read(self.scene.log()).unwrap();
        with(&mut log[commit * 512..][..512]);
        fs::write(self.scene.log(), log).unwrap();
    }

    fn open(&self, boot_id: &str) -> Result<usize, JournalError> {
        let counters = Counters {
            boot_id: boot_id.to_owned(),
            ..self.counters.clone()
        };
        let opened = Store::open(&self.scene.path(), counters, Arc::default());
        opened.map(|(_, found)| leases(&found).len())
    }

    fn counted(&self) -> Vec<String> {
        let directory = self.counters.directory.as_ref().unwrap();
        let files = fs::read_dir(directory).unwrap();
        files
            .map(|it| fs::read_to_string(it.unwrap().path()).unwrap())
            .collect()
    }
}

#[test]
fn on_the_same_boot_a_commit_that_was_reported_is_never_dropped() {
    let killed = Killed::new();
    assert_eq!(killed.counted(), [format!("{:020} this boot\n", 3)]);
    killed.damage(3, |sector| sector.fill(0));
    let refused = killed.open("this boot").unwrap_err().to_string();
    let expected = "commit 3 was reported, and only those up to 2 are whole";
    assert!(refused.contains(expected), "{refused}");
    // After a reboot nothing shows the loss (docs/decisions/0046).
    assert_eq!(killed.open("another boot").unwrap(), 2);
}

#[test]
fn on_the_same_boot_whatever_follows_the_last_commit_that_was_reported_is_dropped() {
    for boot_id in ["this boot", "another boot"] {
        let killed = Killed::new();
        killed.damage(4, |sector| sector.fill(7));
        match killed.open(boot_id) {
            Ok(leases) => assert_eq!((boot_id, leases), ("this boot", 3)),
            Err(refused) => {
                let refused = refused.to_string();
                assert_eq!(boot_id, "another boot", "{refused}");
                let expected = "behind commit 3 none is whole";
                assert!(refused.contains(expected), "{refused}");
            }
        }
    }
}

#[test]
fn a_counter_is_of_one_log_and_ends_with_it() {
    let killed = Killed::new();
    let counters = killed.counters.clone();
    let opened = Store::open(&killed.scene.path(), counters, Arc::default());
    let (mut store, _) = opened.unwrap();
    let change = put(4, "value");
    store.commit([(change.key, change.value)].into()).unwrap();
    assert_eq!(killed.counted(), [format!("{:020} this boot\n", 4)]);
    store.close().unwrap();
    assert!(killed.counted().is_empty());
}

#[test]
fn without_a_place_for_counters_commits_go_on() {
    let scene = Scene::new();
    let counters = Counters {
        directory: Some("/proc/none".into()),
        ..on("this boot")
    };
    let (mut store, _) = Store::open(&scene.path(), counters, Arc::default()).unwrap();
    let change = put(1, "value");
    store.commit([(change.key, change.value)].into()).unwrap();
    drop(store);
    assert_eq!(leases(&open_store(&scene.path()).unwrap()).len(), 1);
}
