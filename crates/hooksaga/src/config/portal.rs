//! `portal.*`: how the customer portal looks, and who may embed it.

use super::{ConfigError, settings::Settings};

const LONGEST_NAME: usize = 100;

/// A calm blue.
const COLOR: &str = "#2f6f9f";

#[derive(Clone, Debug)]
pub(crate) struct PortalConfig {
    pub(crate) name: String,
    /// `#rrggbb`, in lower case.
    pub(crate) color: String,
    /// The origins whose pages may show the portal in a frame.
    pub(crate) frame_ancestors: Vec<String>,
}

impl PortalConfig {
    pub(super) fn read(settings: &Settings) -> Result<Self, ConfigError> {
        let name = settings.text("portal.name")?.unwrap_or_else(|| "Webhooks".to_owned());
        let length = name.chars().count();
        if name.trim().is_empty() || length > LONGEST_NAME || name.chars().any(char::is_control) {
            return Err(settings.complain("portal.name", "a name has 1 to 100 characters on one line"));
        }
        let color = settings.text("portal.color")?.unwrap_or_else(|| COLOR.to_owned()).to_ascii_lowercase();
        if !is_color(&color) {
            return Err(settings.complain("portal.color", "a colour is written like #2f6f9f"));
        }
        let key = "portal.frame_ancestors";
        let frame_ancestors = settings.list(key)?.unwrap_or_default();
        if let Some(wrong) = frame_ancestors.iter().find(|origin| !is_origin(origin)) {
            let problem = format!("{wrong:?} is not an origin: write it like https://app.example.com");
            return Err(settings.complain(key, &problem));
        }
        Ok(Self { name, color, frame_ancestors })
    }
}

fn is_color(text: &str) -> bool {
    text.strip_prefix('#')
        .is_some_and(|digits| digits.len() == 6 && digits.bytes().all(|digit| digit.is_ascii_hexdigit()))
}

/// Scheme, host and perhaps a port; the host may begin with `*.`. It becomes part of a header, so nothing else passes.
fn is_origin(text: &str) -> bool {
    let Some((scheme, host)) = text.split_once("://") else { return false };
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-:*[]".contains(&byte);
    matches!(scheme, "https" | "http")
        && !host.is_empty()
        && host.len() <= 255
        && host.bytes().all(allowed)
        && host.strip_prefix("*.").unwrap_or(host).bytes().all(|byte| byte != b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_cannot_smuggle_anything_into_a_header() {
        for origin in [
            "https://app.example.com",
            "http://127.0.0.1:3000",
            "https://*.example.com",
            "https://[::1]:8443",
        ] {
            assert!(is_origin(origin), "{origin}");
        }
        for origin in
            ["*", "app.example.com", "https://", "https://a b", "https://a;b", "https://a/b", "https://a*"]
        {
            assert!(!is_origin(origin), "{origin}");
        }
    }
}
