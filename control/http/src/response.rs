//! Answers.

use hyper::{
    Response, StatusCode,
    header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS},
};
use serde::Serialize;

use crate::Content;

/// An answer.
pub type Answer = Response<Content>;

/// A page as JSON, with a line end for people.
pub fn json(status: StatusCode, page: &impl Serialize) -> Answer {
    // Texts and numbers have no part that cannot be written.
    let mut body = serde_json::to_string(page).unwrap_or_default();
    body.push('\n');
    text(status, "application/json", body)
}

/// A page of this media type. No cache keeps it.
#[must_use]
pub fn text(status: StatusCode, content_type: &'static str, body: String) -> Answer {
    answer(status, content_type, Content::whole(body))
}

/// Content of this media type. No cache keeps it.
#[must_use]
pub fn answer(status: StatusCode, content_type: &'static str, content: Content) -> Answer {
    let mut response = Response::new(content);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
