//! The HTTP port (`--http-listen`): whether the scheduler is well, for who has no certificate, such as a monitor or a load
//! balancer.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use fabricbios_fabric::FabricId;
use fabricbios_http::{Answer, Http, Incoming, Latest, Request, Site, StatusCode, json};
use fabricbios_wire::NodeId;
use serde::Serialize;

use crate::health::{Asks, Health};

/// How long the task that owns the view may take.
const OWNER_TIMEOUT: Duration = Duration::from_secs(2);

/// # Errors
/// The address cannot be listened on.
pub(crate) fn start(listen: SocketAddr, about: About, asks: Asks) -> io::Result<Http> {
    let health = Latest::default();
    Http::start(
        listen,
        Pages {
            about,
            asks,
            health,
        },
    )
}

/// Which scheduler it is.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct About {
    scheduler_id: String,
    fabric: String,
    version: &'static str,
}

impl About {
    pub(crate) fn new(scheduler_id: NodeId, fabric: FabricId) -> Self {
        Self {
            scheduler_id: scheduler_id.to_string(),
            fabric: fabric.to_string(),
            version: env!("CARGO_PKG_VERSION"),
        }
    }
}

/// A page of either path.
#[derive(Debug, Serialize)]
struct Page<'a> {
    #[serde(flatten)]
    about: &'a About,
    #[serde(flatten)]
    told: Told,
}

/// What the page says besides.
#[derive(Debug, Serialize)]
#[serde(untagged)]
enum Told {
    Health(Health),
    Silent { ready: bool, why_not: [String; 1] },
}

/// What is served.
#[derive(Debug)]
struct Pages {
    about: About,
    asks: Asks,
    /// The task that owns the view looks at every node for each answer.
    health: Latest<Health>,
}

impl Site for Pages {
    const PAGES: &'static str = "there are /healthz and /readyz";

    async fn answer(self: &Arc<Self>, request: &Request<Incoming>) -> Option<Answer> {
        match request.uri().path() {
            "/healthz" => Some(self.page(|_| true).await),
            "/readyz" => Some(self.page(|health| health.ready).await),
            _ => None,
        }
    }

    async fn run(&self) {
        self.health.refresh(|| self.asks.health()).await;
    }
}

impl Pages {
    /// The page, and whether it is good.
    async fn page(&self, is_good: impl Fn(&Health) -> bool) -> Answer {
        let health = self.health.get(OWNER_TIMEOUT).await;
        let status = match &health {
            Some(health) if is_good(health) => StatusCode::OK,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        };
        let silent = || Told::Silent {
            ready: false,
            why_not: [format!(
                "the scheduler stops, or does not answer within {OWNER_TIMEOUT:?}"
            )],
        };
        let page = Page {
            about: &self.about,
            told: health.map_or_else(silent, Told::Health),
        };
        json(status, &page)
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpStream,
    };

    use super::*;

    #[tokio::test]
    async fn a_scheduler_whose_task_does_not_answer_is_not_well() {
        let (asks, _asked) = crate::health::channel();
        let about = About::new(NodeId([1; 32]), FabricId([7; 16]));
        let listen = SocketAddr::from(([127, 0, 0, 1], 0));
        let http = start(listen, about, asks).unwrap();
        // All wait for one answer, and none for the other's time.
        let ask = async || {
            let mut stream = TcpStream::connect(http.local_addr()).await.unwrap();
            stream
                .write_all(b"GET /healthz HTTP/1.1\r\n\r\n")
                .await
                .unwrap();
            let mut told = String::new();
            stream.read_to_string(&mut told).await.unwrap();
            told
        };
        for told in <[String; 3]>::from(tokio::join!(ask(), ask(), ask())) {
            assert!(told.starts_with("HTTP/1.1 503 "), "{told}");
            assert!(told.contains(r#""ready":false"#), "{told}");
            assert!(told.contains("does not answer within 2s"), "{told}");
        }
        http.stop().await;
    }
}
