//! A small HTTP port for who has no certificate of the fabric: monitors, load balancers, people with a browser. It is
//! read-only. With TLS it takes clients with certificates of another CA.
//!
//! Whoever connects is bounded in number and time, and holds up neither the program nor the others.

#![forbid(unsafe_code)]

mod content;
mod latest;
pub mod metrics;
mod opening;
pub mod page;
mod places;
pub mod process;
mod response;
mod server;

pub use content::Content;
pub use hyper::{
    Request, Response, StatusCode,
    body::{Bytes, Incoming},
    header,
};
pub use latest::Latest;
pub use opening::{OpenedPort, Opening, Trouble};
pub use response::{Answer, answer, json, text};
pub use server::{Http, Site};
