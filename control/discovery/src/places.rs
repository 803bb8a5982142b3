//! The interfaces on which somebody announces or looks, with their sockets. They come and go, and change their addresses.

use std::{collections::HashMap, net::IpAddr, sync::Arc, time::Duration};

use tokio::{sync::mpsc, task::JoinSet, time::sleep};

use crate::{
    Arrived, Link, LinkError,
    link::{Hears, Interface},
};

/// After so many datagrams a socket is not read for [`PAUSE`]: the kernel drops what is more.
const READ_AT_ONCE: usize = 64;
const PAUSE: Duration = Duration::from_millis(20);
/// The pause after an error of a socket.
const AFTER_ERROR: Duration = Duration::from_secs(1);
/// Datagrams that wait for the task.
const WAITING_MAX: usize = 64;

/// See the module.
#[derive(Debug)]
pub(crate) struct Places {
    all: Vec<Place>,
    hears: &'static [Hears],
    forward: mpsc::Sender<(Arc<Link>, Arrived)>,
    arrived: mpsc::Receiver<(Arc<Link>, Arrived)>,
}

#[derive(Debug)]
struct Place {
    name: String,
    /// As it was when the sockets were opened; `None`: there are none.
    opened: Option<Interface>,
    links: Vec<Arc<Link>>,
    readers: JoinSet<()>,
    /// The last error that was told, of the interface and of each of its addresses.
    told: HashMap<Option<IpAddr>, String>,
}

impl Places {
    /// Opens the sockets of all of these interfaces. Must be called within a tokio runtime.
    pub(crate) fn open_all(names: &[String], hears: &'static [Hears]) -> Result<Self, LinkError> {
        let (places, failed) = Self::opened(names, hears);
        failed.map_or(Ok(places), Err)
    }

    /// Opens the sockets of those of these interfaces that have some; the others are told in the log, and tried again. Must be
    /// called within a tokio runtime.
    pub(crate) fn open(names: &[String], hears: &'static [Hears]) -> Result<Self, LinkError> {
        let (mut places, failed) = Self::opened(names, hears);
        match failed {
            Some(error) if places.all.iter().all(|it| it.opened.is_none()) => Err(error),
            _ => {
                places.refresh();
                Ok(places)
            }
        }
    }

    /// With the first error.
    fn opened(names: &[String], hears: &'static [Hears]) -> (Self, Option<LinkError>) {
        let (forward, arrived) = mpsc::channel(WAITING_MAX);
        let mut places = Self {
            all: Vec::new(),
            hears,
            forward,
            arrived,
        };
        let mut failed = None;
        for name in names {
            // Whoever names an interface twice is answered once.
            if places.all.iter().any(|it| it.name == *name) {
                continue;
            }
            let mut place = Place::named(name);
            if let Err(error) = place.refresh(hears, &places.forward) {
                failed.get_or_insert(error);
            }
            places.all.push(place);
        }
        (places, failed)
    }

    /// Interfaces with a link of each of these addresses.
    #[cfg(test)]
    pub(crate) fn of_addresses(all: &[(&str, &[&str])]) -> Self {
        let (mut places, _) = Self::opened(&[], &[Hears::Group]);
        for (name, addresses) in all {
            let links = addresses.iter().map(|it| Arc::new(Link::of_address(it)));
            places.all.push(Place {
                links: links.collect(),
                ..Place::named(name)
            });
        }
        places
    }

    /// Whether a link is like this.
    pub(crate) fn has(&self, is_such: impl Fn(&Link) -> bool) -> bool {
        let mut links = self.all.iter().flat_map(|it| &it.links);
        links.any(|link| is_such(link))
    }

    /// The interfaces of which no link is like this, among those that have some.
    pub(crate) fn without(&self, is_such: impl Fn(&Link) -> bool) -> Vec<String> {
        let all = self.all.iter().filter(|it| it.is_without(&is_such));
        all.map(|it| it.name.clone()).collect()
    }

    /// Tells this of the interfaces of which no link is like this, once.
    pub(crate) fn tell_without(&mut self, is_such: impl Fn(&Link) -> bool, why: &str) {
        for place in &mut self.all {
            if place.is_without(&is_such) {
                place.tell(None, why.to_owned());
            }
        }
    }

    /// Opens those anew that have changed.
    pub(crate) fn refresh(&mut self) {
        for place in &mut self.all {
            if let Err(error) = place.refresh(self.hears, &self.forward) {
                place.tell(None, error.to_string());
            }
        }
    }

    /// The next datagram, and the socket that got it.
    pub(crate) async fn next(&mut self) -> (Arc<Link>, Arrived) {
        match self.arrived.recv().await {
            Some(arrived) => arrived,
            // This side holds a sender.
            None => std::future::pending().await,
        }
    }

    /// Sends to the group on every link what `of` makes for it. An error is told once.
    pub(crate) async fn send(&mut self, mut of: impl FnMut(&Link) -> Option<Vec<u8>>) {
        for place in &mut self.all {
            for link in place.senders(self.hears) {
                let Some(datagram) = of(&link) else {
                    continue;
                };
                match link.send_to_group(&datagram).await {
                    Ok(()) => drop(place.told.remove(&Some(link.address()))),
                    Err(why) => {
                        let at = link.address();
                        place.tell(Some(at), format!("send to the group from {at}: {why}"));
                    }
                }
            }
        }
    }
}

impl Place {
    fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            opened: None,
            links: Vec::new(),
            readers: JoinSet::new(),
            told: HashMap::new(),
        }
    }

    fn is_without(&self, is_such: &impl Fn(&Link) -> bool) -> bool {
        !self.links.is_empty() && !self.links.iter().any(|it| is_such(it))
    }

    fn refresh(
        &mut self,
        hears: &[Hears],
        forward: &mpsc::Sender<(Arc<Link>, Arrived)>,
    ) -> Result<(), LinkError> {
        let now = Interface::read(&self.name);
        if now.as_ref().ok() == self.opened.as_ref() && self.opened.is_some() {
            return Ok(());
        }
        (self.opened, self.links) = (None, Vec::new());
        self.readers = JoinSet::new();
        let now = now?;
        for it in hears {
            self.links.extend(now.open(*it)?.into_iter().map(Arc::new));
        }
        for link in &self.links {
            self.readers.spawn(read(Arc::clone(link), forward.clone()));
        }
        self.opened = Some(now);
        Ok(())
    }

    /// The sockets that send to the group: the asker's own where there are some, whose port gets the answers.
    fn senders(&self, hears: &[Hears]) -> Vec<Arc<Link>> {
        // Those of the last kind were opened last.
        let of_each = self.links.len() / hears.len().max(1);
        self.links[self.links.len() - of_each..].to_vec()
    }

    fn tell(&mut self, of: Option<IpAddr>, why: String) {
        if self.told.get(&of) != Some(&why) {
            tracing::warn!(interface = self.name, why, "discovery");
            self.told.insert(of, why);
        }
    }
}

async fn read(link: Arc<Link>, forward: mpsc::Sender<(Arc<Link>, Arrived)>) {
    let mut count = 0;
    loop {
        let Ok(arrived) = link.receive().await else {
            sleep(AFTER_ERROR).await;
            continue;
        };
        if forward.send((Arc::clone(&link), arrived)).await.is_err() {
            return;
        }
        count += 1;
        if count % READ_AT_ONCE == 0 {
            sleep(PAUSE).await;
        }
    }
}
