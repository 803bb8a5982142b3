//! The QUIC endpoint: TLS, bounds and windows.

use std::sync::Arc;

use fabricbios_fabric::Fabric;
use fabricbios_wire::{HEADER_LEN, MAX_PAYLOAD};
use quinn::{AsyncUdpSocket, Endpoint, IdleTimeout, TransportConfig, VarInt};

use crate::{Limits, ServerError, tls};

/// Most unread bytes of a peer on one connection: several frames of the largest size.
pub(crate) const RECEIVE_WINDOW: u32 = 9 << 16;
const _: () = assert!(RECEIVE_WINDOW as usize >= 8 * (HEADER_LEN + MAX_PAYLOAD + 1));
/// Most bytes that are written to a connection and not acknowledged.
pub(crate) const SEND_WINDOW: u32 = RECEIVE_WINDOW;
/// Both limits, in bytes, while the connection has a stream to a session: a network of 25 Gbit/s carries this in 0.6
/// ms.
pub(crate) const SESSION_WINDOW: u32 = 2 << 20;

/// An endpoint on `socket` that serves the members of the node's fabrics.
pub(crate) fn endpoint(
    socket: Arc<dyn AsyncUdpSocket>,
    fabric: &Fabric,
    config: quinn::ServerConfig,
) -> Result<Endpoint, ServerError> {
    let endpoint = tls::endpoint_config(fabric);
    let runtime = Arc::new(quinn::TokioRuntime);
    Endpoint::new_with_abstract_socket(endpoint, Some(config), socket, runtime)
        .map_err(|error| ServerError::Tls(format!("QUIC endpoint: {error}").into()))
}

/// What new connections get.
pub(crate) fn server_config(
    fabric: &Fabric,
    limits: &Limits,
) -> Result<quinn::ServerConfig, ServerError> {
    let crypto = tls::server_config(fabric).map_err(ServerError::Tls)?;
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
    config.transport_config(Arc::new(transport(limits)?));
    // Limits count by address, so the address of a connection must not change.
    config.migration(false);
    Ok(config)
}

fn transport(limits: &Limits) -> Result<TransportConfig, ServerError> {
    let idle = IdleTimeout::try_from(limits.idle_timeout).map_err(|e| {
        ServerError::Tls(format!("idle timeout {:?}: {e}", limits.idle_timeout).into())
    })?;
    let mut config = TransportConfig::default();
    config
        .max_concurrent_bidi_streams(limits.requests_per_connection_max.into())
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(None)
        // A stream's window cannot change later. The window of its connection limits the stream too.
        .stream_receive_window(SESSION_WINDOW.into())
        .receive_window(RECEIVE_WINDOW.into())
        .send_window(SEND_WINDOW.into())
        .max_idle_timeout(Some(idle));
    Ok(config)
}
