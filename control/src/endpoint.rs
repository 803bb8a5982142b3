//! The QUIC endpoint: TLS, bounds and windows.

use std::{net::UdpSocket, sync::Arc};

use fabricbios_wire::{HEADER_LEN, MAX_PAYLOAD};
use quinn::{Endpoint, IdleTimeout, TransportConfig, VarInt};

use crate::{Fabric, Limits, ServerError, tls};

/// The receive window of a connection, in frames of the largest size.
const FRAMES_BUFFERED: u32 = 8;

/// An endpoint on `socket` that serves the members of one fabric.
pub(crate) fn endpoint(
    socket: UdpSocket,
    fabric: &Fabric,
    limits: &Limits,
) -> Result<Endpoint, ServerError> {
    let crypto = tls::server_config(fabric.node(), &fabric.ca()).map_err(ServerError::Tls)?;
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
    config.transport_config(Arc::new(transport(limits)?));
    // Limits are counted by address, so the address of a connection must not change.
    config.migration(false);
    let endpoint = tls::endpoint_config(fabric.node());
    let runtime = Arc::new(quinn::TokioRuntime);
    Endpoint::new(endpoint, Some(config), socket, runtime)
        .map_err(|source| ServerError::Tls(format!("QUIC endpoint: {source}")))
}

fn transport(limits: &Limits) -> Result<TransportConfig, ServerError> {
    let frame = u32::try_from(HEADER_LEN + MAX_PAYLOAD + 1).unwrap_or(u32::MAX);
    let idle = IdleTimeout::try_from(limits.idle_timeout)
        .map_err(|e| ServerError::Tls(format!("idle timeout {:?}: {e}", limits.idle_timeout)))?;
    let mut config = TransportConfig::default();
    config
        .max_concurrent_bidi_streams(limits.requests_per_connection_max.into())
        .max_concurrent_uni_streams(VarInt::from_u32(0))
        .datagram_receive_buffer_size(None)
        .stream_receive_window(frame.into())
        .receive_window(frame.saturating_mul(FRAMES_BUFFERED).into())
        .send_window(u64::from(frame) * u64::from(FRAMES_BUFFERED))
        .max_idle_timeout(Some(idle));
    Ok(config)
}
