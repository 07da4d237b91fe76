//! How the portal looks: the product's own name and colour, readable on light and dark pages, and who may embed it.

use super::Site;
use http::HeaderValue;

/// How the customer portal looks, and who may embed it.
#[derive(Clone, Debug)]
pub struct PortalLook {
    pub name: String,
    /// `#rrggbb`.
    pub color: String,
    /// The origins whose pages may show the portal in a frame.
    pub frame_ancestors: Vec<String>,
}

impl Default for PortalLook {
    fn default() -> Self {
        Self { name: "Webhooks".to_owned(), color: "#2f6f9f".to_owned(), frame_ancestors: Vec::new() }
    }
}

/// A [`PortalLook`], ready for use.
pub(crate) struct Appearance {
    pub(super) name: String,
    /// The portal's style sheet, which only sets its colours.
    pub(super) theme: String,
    /// Its icon: the product's colour, and nothing of ours.
    pub(super) icon: String,
    policy: HeaderValue,
    portal_policy: HeaderValue,
    may_be_embedded: bool,
}

impl Appearance {
    pub(crate) fn new(look: PortalLook) -> Self {
        Self {
            theme: theme(&look.color),
            icon: icon(&look.color),
            policy: policy(&[]),
            portal_policy: policy(&look.frame_ancestors),
            may_be_embedded: !look.frame_ancestors.is_empty(),
            name: look.name,
        }
    }

    pub(super) fn policy(&self, site: Site) -> HeaderValue {
        match site {
            Site::Dashboard => self.policy.clone(),
            Site::Portal => self.portal_policy.clone(),
        }
    }

    pub(super) fn may_be_embedded(&self) -> bool {
        self.may_be_embedded
    }
}

fn policy(frame_ancestors: &[String]) -> HeaderValue {
    let ancestors = if frame_ancestors.is_empty() { "'none'".to_owned() } else { frame_ancestors.join(" ") };
    let policy = format!(
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; \
         form-action 'self'; base-uri 'none'; frame-ancestors {ancestors}"
    );
    HeaderValue::try_from(policy)
        .unwrap_or_else(|_| HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'"))
}

type Rgb = [u8; 3];

const WHITE: Rgb = [255; 3];
const BLACK: Rgb = [0; 3];
/// The backgrounds of the style sheet.
const LIGHT_PAGE: Rgb = [0xf7, 0xf8, 0xfa];
const DARK_PAGE: Rgb = [0x1c, 0x22, 0x2b];
/// What text needs to be readable (WCAG AA).
const READABLE: f64 = 4.5;

/// The colour, and black or white, whichever can be read better in it.
fn brand(color: &str) -> (Rgb, Rgb) {
    let brand = parse(color).unwrap_or([0x2f, 0x6f, 0x9f]);
    (brand, if contrast(brand, WHITE) >= contrast(brand, BLACK) { WHITE } else { BLACK })
}

/// An arrow into a box.
fn icon(color: &str) -> String {
    let (brand, ink) = brand(color);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 32 32\"><rect width=\"32\" height=\"32\" rx=\"8\" \
         fill=\"{}\"/><path d=\"M6 16h13M14 10.5l5.5 5.5-5.5 5.5M21 8h3.5v16H21\" fill=\"none\" stroke=\"{}\" \
         stroke-width=\"3\" stroke-linecap=\"round\" stroke-linejoin=\"round\"/></svg>\n",
        hex(brand),
        hex(ink)
    )
}

/// The accent on both kinds of pages: the given colour, made darker or lighter until text in it can be read.
fn theme(color: &str) -> String {
    let (brand, ink) = brand(color);
    let (light, dark) = (readable(brand, BLACK, LIGHT_PAGE), readable(brand, WHITE, DARK_PAGE));
    let (brand, ink, light, dark) = (hex(brand), hex(ink), hex(light), hex(dark));
    format!(
        ":root {{ --accent: {light}; --button: {brand}; --button-ink: {ink}; }}\n\
         @media (prefers-color-scheme: dark) {{ :root {{ --accent: {dark}; }} }}\n"
    )
}

fn parse(text: &str) -> Option<Rgb> {
    let digits = text.strip_prefix('#').filter(|digits| digits.len() == 6)?;
    let byte = |at: usize| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
    Some([byte(0)?, byte(2)?, byte(4)?])
}

fn hex(color: Rgb) -> String {
    format!("#{:02x}{:02x}{:02x}", color[0], color[1], color[2])
}

/// The colour, mixed with `towards` in steps of a twentieth until it can be read on `page`.
fn readable(color: Rgb, towards: Rgb, page: Rgb) -> Rgb {
    let mixed = |step: u16| {
        let part = |index: usize| {
            let (from, to) = (u16::from(color[index]), u16::from(towards[index]));
            u8::try_from((from * (20 - step) + to * step) / 20).unwrap_or(u8::MAX)
        };
        [part(0), part(1), part(2)]
    };
    (0..=20).map(mixed).find(|mixed| contrast(*mixed, page) >= READABLE).unwrap_or(towards)
}

/// The contrast of two colours as WCAG defines it, 1 to 21.
fn contrast(a: Rgb, b: Rgb) -> f64 {
    let (a, b) = (luminance(a), luminance(b));
    (a.max(b) + 0.05) / (a.min(b) + 0.05)
}

fn luminance(color: Rgb) -> f64 {
    let linear = color.map(|byte| {
        let part = f64::from(byte) / 255.0;
        if part <= 0.03928 { part / 12.92 } else { ((part + 0.055) / 1.055).powf(2.4) }
    });
    0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_colour_becomes_readable_on_both_pages() {
        for color in ["#2f6f9f", "#ffff00", "#000000", "#ffffff", "#ff0000", "#808080"] {
            let brand = parse(color).expect("a colour");
            assert!(contrast(readable(brand, BLACK, LIGHT_PAGE), LIGHT_PAGE) >= READABLE, "{color}");
            assert!(contrast(readable(brand, WHITE, DARK_PAGE), DARK_PAGE) >= READABLE, "{color}");
        }
        assert_eq!(
            hex(readable([0x2f, 0x6f, 0x9f], BLACK, LIGHT_PAGE)),
            "#2f6f9f",
            "left alone where it can be"
        );
        assert!(theme("#ffff00").contains("--button-ink: #000000"));
        assert!(theme("#2f6f9f").contains("--button-ink: #ffffff"));
        assert!(
            icon("#ffff00").contains("fill=\"#ffff00\"") && icon("#ffff00").contains("stroke=\"#000000\"")
        );
    }

    #[test]
    fn contrast_is_that_of_the_standard() {
        assert!((contrast(WHITE, BLACK) - 21.0).abs() < 0.01);
        assert!((contrast(WHITE, [0x77; 3]) - 4.48).abs() < 0.01);
    }

    #[test]
    fn only_listed_origins_may_embed_the_portal() {
        let look = Appearance::new(PortalLook {
            frame_ancestors: vec!["https://app.example.com".to_owned()],
            ..PortalLook::default()
        });
        let text = |site| look.policy(site).to_str().expect("ASCII").to_owned();
        assert!(text(Site::Portal).ends_with("frame-ancestors https://app.example.com"));
        assert!(text(Site::Dashboard).ends_with("frame-ancestors 'none'"));
    }
}
