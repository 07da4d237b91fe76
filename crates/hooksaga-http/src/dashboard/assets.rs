//! The style sheets, the script and the icon: part of the program, with their content's hash in the name, so that browsers
//! keep them forever and a new version's page never runs with an old version's script.

use crate::{
    auth::hash_key,
    listener::Unmetered,
    problem::{Kind, Problem},
    state::{ApiState, SharedState},
};
use axum::{
    extract::{Path, State},
    response::{IntoResponse, Response},
};
use http::header;
use std::sync::LazyLock;

const CSS: &str = include_str!("dashboard.css");
const JS: &str = include_str!("dashboard.js");
const ICON: &str = include_str!("icon.svg");

const KEEP: &str = "public, max-age=31536000, immutable";

pub(super) static STYLE: LazyLock<String> = LazyLock::new(|| name("dashboard", CSS, "css"));
pub(super) static SCRIPT: LazyLock<String> = LazyLock::new(|| name("dashboard", JS, "js"));
pub(super) static ICON_NAME: LazyLock<String> = LazyLock::new(|| name("icon", ICON, "svg"));

/// The name of the portal's own icon.
pub(super) fn portal_icon(state: &ApiState) -> String {
    name("portal", &state.look.icon, "svg")
}

/// The name of the portal's own style sheet.
pub(super) fn theme(state: &ApiState) -> String {
    name("portal", &state.look.theme, "css")
}

fn name(stem: &str, content: &str, extension: &str) -> String {
    let hash: String = hash_key(content)[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{stem}-{hash}.{extension}")
}

pub(super) async fn show(State(state): State<SharedState>, Path(asked): Path<String>) -> Response {
    let asset = |content_type: &'static str, text: &'static str| {
        (
            [(header::CONTENT_TYPE, content_type), (header::CACHE_CONTROL, KEEP)],
            axum::Extension(Unmetered),
            text,
        )
            .into_response()
    };
    let portals = |content_type: &'static str, text: &str| {
        ([(header::CONTENT_TYPE, content_type), (header::CACHE_CONTROL, KEEP)], text.to_owned())
            .into_response()
    };
    match asked {
        asked if asked == *STYLE => asset("text/css; charset=utf-8", CSS),
        asked if asked == *SCRIPT => asset("text/javascript; charset=utf-8", JS),
        asked if asked == *ICON_NAME => asset("image/svg+xml", ICON),
        asked if asked == theme(&state) => portals("text/css; charset=utf-8", &state.look.theme),
        asked if asked == portal_icon(&state) => portals("image/svg+xml", &state.look.icon),
        _ => Problem::new(Kind::NotFound, "there is no such file; reload the page").into_response(),
    }
}
