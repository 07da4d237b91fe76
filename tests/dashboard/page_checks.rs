//! Every page: no error on its console, no barrier for people who see or move otherwise, no scrolling sideways on a phone,
//! in light and in dark.
//!
//! `HOOKSAGA_SCREENSHOTS=docs` stores the pictures of the documentation anew, any other value is a folder for pictures of
//! every page.

use super::{fixture::Scene, *};
use std::path::{Path, PathBuf};

/// The pictures that the documentation shows.
const IN_DOCS: [&str; 7] = [
    "overview-light",
    "overview-dark",
    "overview-phone",
    "delivery-given-up-light",
    "subscription-light",
    "dead-letters-light",
    "portal-light",
];

/// Where a picture goes; nowhere unless somebody asked for pictures.
fn picture_file(name: &str) -> Option<PathBuf> {
    let asked = std::env::var("HOOKSAGA_SCREENSHOTS").ok()?;
    let folder = match asked.as_str() {
        "docs" if IN_DOCS.contains(&name) => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/images"),
        "docs" => return None,
        folder => PathBuf::from(folder),
    };
    std::fs::create_dir_all(&folder).unwrap();
    Some(folder.join(format!("{name}.png")))
}

async fn picture(page: &Page, name: &str) {
    if let Some(file) = picture_file(name) {
        page.eval(AS_IN_USE).await;
        page.picture(&file, false).await;
    }
}

/// Endpoints of the tests have addresses of this machine; pictures show them as they are in use. Links leave https:// out.
const AS_IN_USE: &str = "(() => {
    const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        const text = texts.currentNode, scheme = text.parentElement.closest('a.url') ? '' : 'https://';
        text.data = text.data.replace(/http:\\/\\/hooks\\.localhost:\\d+/g, scheme + 'hooks.example.com');
    }
    return 0;
})()";

/// How many tables and rows somebody finds who does not see them.
async fn tables(page: &Page) -> (usize, usize) {
    let roles = page.roles().await;
    let count = |wanted: &str| roles.iter().filter(|role| *role == wanted).count();
    (count("table"), count("row"))
}

/// The first URL of an ordinary length that is not seen whole: endpoints of one host differ in their paths.
async fn cut_url(page: &Page) -> Option<String> {
    let cut = page
        .eval(
            "[...document.querySelectorAll('a.url')].filter((one) => one.textContent.length < 64)
               .filter((one) => one.scrollHeight > one.clientHeight + 2 || one.scrollWidth > one.clientWidth + 2)
               .map((one) => one.textContent)[0]",
        )
        .await;
    cut.as_str().map(ToOwned::to_owned)
}

/// Opens a page and looks at it; what is wrong with it.
pub(super) async fn examine(page: &Page, name: &str, path: &str) -> Vec<String> {
    page.open(path).await;
    page.until("!document.body.innerText.includes('Loading…')").await;
    look_at(page, name).await
}

/// Looks at the page that is shown in both colours and several widths.
async fn look_at(page: &Page, name: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    for scheme in ["light", "dark"] {
        page.scheme(scheme).await;
        picture(page, &format!("{name}-{scheme}")).await;
        wrong.extend(page.barriers().await.into_iter().map(|barrier| format!("{name}, {scheme}: {barrier}")));
    }
    let scrolls =
        "[...document.querySelectorAll('.scroll')].some((one) => one.scrollWidth > one.clientWidth)";
    for width in [1024, 1280, 1600] {
        page.wide(width).await;
        if page.eval(scrolls).await == true {
            wrong.push(format!("{name} has a table that is wider than a page of {width}"));
        }
        wrong.extend(cut_url(page).await.map(|url| format!("{name} cuts {url} at {width}")));
    }
    let on_desk = tables(page).await;
    page.wide(400).await;
    page.scheme("light").await;
    wrong.extend(cut_url(page).await.map(|url| format!("{name} cuts {url} on a phone")));
    picture(page, &format!("{name}-phone")).await;
    // Rows of tables become a few lines there, and stay rows for those who do not see them.
    wrong.extend(page.barriers().await.into_iter().map(|barrier| format!("{name}, phone: {barrier}")));
    let on_phone = tables(page).await;
    if on_phone != on_desk {
        wrong.push(format!("{name} has {on_desk:?} tables and rows, and {on_phone:?} on a phone"));
    }
    let widest = page
        .eval(
            "document.documentElement.scrollWidth <= 400 ? '' : [...document.querySelectorAll('body *')]
               .filter((one) => one.getBoundingClientRect().right > 400 && !one.closest('nav, pre, .unseen'))
               .slice(0, 3).map((one) => one.outerHTML.slice(0, 120)).join(' | ') || 'something'",
        )
        .await;
    if widest != "" {
        wrong.push(format!("{name} is wider than a phone: {widest}"));
    }
    page.wide(1280).await;
    wrong.extend(page.complaints().into_iter().map(|complaint| format!("{name}: {complaint}")));
    wrong
}

fn installation() -> Installation {
    Installation::sqlite()
        .with("HOOKSAGA_RETRY_BASE_DELAY", "600ms")
        .with("HOOKSAGA_RETRY_MAX_DELAY", "1h")
        .with("HOOKSAGA_PORTAL_NAME", "Tea & Cups webhooks")
        .with("HOOKSAGA_PORTAL_COLOR", "#0b7a75")
        .with("HOOKSAGA_CALLBACKS_ALLOW_TRUSTED", "true")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_page_of_a_busy_server() {
    let scene = Scene::busy(&installation()).await;
    let page = signed_in(&scene.server).await;
    let mut wrong = Vec::new();
    for (name, path) in scene.pages() {
        wrong.extend(examine(&page, name, &path).await);
    }
    // What forms lead to.
    page.open("/subscriptions/new").await;
    page.fill("input[name=callback_url]", "https://example.com/hooks").await;
    page.fill("textarea[name=topics]", "no topic!").await;
    page.follow("main form button").await;
    page.see("must be an event type").await;
    wrong.extend(look_at(&page, "subscription-refused").await);
    page.open("/dead-letters?requeued=false").await;
    page.follow("button[value=count]").await;
    page.see("would be sent again").await;
    wrong.extend(look_at(&page, "dead-letters-count").await);
    page.open(&format!("/subscriptions/{}", scene.good)).await;
    page.eval("document.querySelectorAll('main details').forEach((one) => { one.open = true; })").await;
    page.follow("form[action$='/rotate-secret'] button").await;
    page.see("The signing secret").await;
    wrong.extend(look_at(&page, "subscription-secret").await);
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_page_of_the_portal() {
    let scene = Scene::busy(&installation()).await;
    let page = portal(&scene.server, "acme").await;
    let mut wrong = Vec::new();
    for (name, path) in [
        ("portal", "/portal".to_owned()),
        ("portal-events", "/portal/events".to_owned()),
        ("portal-event", format!("/portal/events/{}", scene.delivered["event_id"])),
        ("portal-deliveries", "/portal/deliveries".to_owned()),
        ("portal-delivery", format!("/portal/deliveries/{}", scene.given_up["saga_id"])),
        ("portal-subscriptions", "/portal/subscriptions".to_owned()),
        ("portal-subscription", format!("/portal/subscriptions/{}", scene.failing)),
        ("portal-subscription-edit", format!("/portal/subscriptions/{}/edit", scene.failing)),
        ("portal-subscription-new", "/portal/subscriptions/new".to_owned()),
        ("portal-dead-letters", "/portal/dead-letters".to_owned()),
        ("portal-dead-letter", format!("/portal/dead-letters/{}", scene.letter)),
        ("portal-redrives", "/portal/redrives".to_owned()),
        ("portal-redrive", "/portal/redrives/2".to_owned()),
        ("portal-search-nothing", "/portal/search?q=nothing-like-it".to_owned()),
        ("portal-search-many", "/portal/search?q=1".to_owned()),
        ("portal-not-there", "/portal/deliveries/987654".to_owned()),
        ("portal-nowhere", "/portal/no/such/page".to_owned()),
    ] {
        wrong.extend(examine(&page, name, &path).await);
        // What has a name here is there, for this customer too.
        let status = page.eval("performance.getEntriesByType('navigation')[0].responseStatus").await;
        let expected = if ["portal-not-there", "portal-nowhere"].contains(&name) { 404 } else { 200 };
        assert_eq!(status, expected, "{name}");
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_page_of_a_new_server() {
    let server = Installation::sqlite().serve().await;
    let page = Page::of(&server.url()).await;
    let mut wrong = examine(&page, "sign-in", "/sign-in").await;
    wrong.extend(examine(&page, "portal-sign-in", "/portal/sign-in").await);
    page.open("/sign-in").await;
    sign_in(&page, ROOT_KEY).await;
    for (name, path) in [
        ("first-overview", "/"),
        ("first-events", "/events"),
        ("first-deliveries", "/deliveries"),
        ("first-subscriptions", "/subscriptions"),
        ("first-dead-letters", "/dead-letters"),
        ("first-redrives", "/redrives"),
        ("first-keys", "/keys"),
        ("api-docs", "/docs"),
    ] {
        wrong.extend(examine(&page, name, path).await);
    }
    assert_eq!(page.eval("document.body.textContent.includes('Responses')").await, true, "of the API");
    assert!(wrong.is_empty(), "{wrong:#?}");

    let customer = portal(&server, "acme").await;
    let mut wrong = Vec::new();
    for path in ["", "/events", "/deliveries", "/subscriptions", "/dead-letters", "/redrives"] {
        let name = format!("portal-first{}", path.replace('/', "-"));
        wrong.extend(examine(&customer, &name, &format!("/portal{path}")).await);
    }
    assert!(wrong.is_empty(), "{wrong:#?}");

    // What is looked for is found where it is.
    page.open("/subscriptions/new").await;
    page.eval("document.documentElement.removeAttribute('lang'); console.error('wrong')").await;
    assert!(page.barriers().await.iter().any(|barrier| barrier.starts_with("html-has-lang: ")));
    eventually("the console is heard", || async { (page.complaints().len() == 1).then_some(()) }).await;
}
