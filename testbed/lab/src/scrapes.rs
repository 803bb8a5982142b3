//! Scrapes of running programs that raise alerts of docs/metrics/alerts.yaml. With `SCRAPES` in the environment, a
//! directory, they are left there as `ALERT.well` and `ALERT.raised`: `testbed/metrics/provoked.py` gives them to the rules.

use std::{
    collections::BTreeMap,
    env, fs,
    path::Path,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// The samples of a page: name with labels, and value.
pub type Samples = BTreeMap<String, f64>;

/// How long a program may take until a page shows the trouble that it is in.
const PATIENCE: Duration = Duration::from_secs(60);

/// A program of which alerts are provoked.
#[derive(Debug)]
pub struct Scene {
    alerts: &'static [&'static str],
    well: Samples,
}

impl Scene {
    /// `page`: of the program while it is well.
    ///
    /// # Panics
    /// If the page is none, or cannot be left.
    #[must_use]
    pub fn of(page: &str, alerts: &'static [&'static str]) -> Self {
        let scene = Self {
            alerts,
            well: samples(page),
        };
        scene.save("well", &[page]);
        scene
    }

    /// Scrapes until the program is as `is_raised` wants it, which gets the samples of the well program first, and those of
    /// now. `page` waits until there is a new page.
    ///
    /// # Panics
    /// If it was so before, or is not within a minute.
    pub async fn raised<F: Future<Output = String>>(
        &self,
        mut page: impl FnMut() -> F,
        is_raised: impl Fn(&Samples, &Samples) -> bool,
    ) {
        let was_raised = is_raised(&self.well, &self.well);
        assert!(!was_raised, "raised before: {:?}", self.alerts);
        let begin = Instant::now();
        loop {
            let page = page().await;
            if is_raised(&self.well, &samples(&page)) {
                return self.raised_by(&[&page]);
            }
            assert!(begin.elapsed() < PATIENCE, "{:?}: {page}", self.alerts);
        }
    }

    /// Leaves these pages, of one minute after the other. An empty one: the program does not answer.
    ///
    /// # Panics
    /// If they cannot be written.
    pub fn raised_by(&self, pages: &[&str]) {
        self.save("raised", pages);
    }

    /// Each page behind the time at which it was read.
    fn save(&self, name: &str, pages: &[&str]) {
        let Some(directory) = env::var_os("SCRAPES") else {
            return;
        };
        let at = SystemTime::now().duration_since(UNIX_EPOCH);
        let at = at.expect("it is after 1970").as_secs();
        let pages: String = pages
            .iter()
            .map(|page| format!("# scraped {at}\n{page}"))
            .collect();
        for alert in self.alerts {
            let file = Path::new(&directory).join(format!("{alert}.{name}"));
            fs::write(file, &pages).expect("a directory for scrapes");
        }
    }
}

/// The samples of a page.
///
/// # Panics
/// If it is no page of metrics.
#[must_use]
pub fn samples(page: &str) -> Samples {
    let samples = page.lines().filter(|it| !it.starts_with('#'));
    let samples = samples.map(|line| {
        let (name, value) = line.rsplit_once(' ').expect("a sample");
        (name.to_owned(), value.parse().expect("a number"))
    });
    samples.collect()
}

/// The samples with this name, whatever their labels, added up.
#[must_use]
pub fn sum(samples: &Samples, name: &str) -> f64 {
    let its = samples
        .iter()
        .filter(|(it, _)| it.split('{').next() == Some(name));
    its.map(|(_, value)| value).sum()
}
