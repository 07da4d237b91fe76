//! One page of the browser, in a profile of its own, as a person uses it.

use super::pipe::{Listener, Pipe};
use crate::support::{PATIENCE, eventually};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use std::{
    path::Path,
    sync::{Arc, Mutex},
};
use tokio::{sync::watch, time::timeout};

/// A tab; closed, with its cookies, when dropped.
pub(crate) struct Page {
    pipe: &'static Pipe,
    profile: String,
    session: String,
    heard: Arc<Heard>,
}

/// What the page told.
struct Heard {
    pipe: &'static Pipe,
    session: String,
    /// The site that it shows: requests to elsewhere are noted.
    site: String,
    complaints: Mutex<Vec<String>>,
    loads: watch::Sender<u64>,
}

impl Listener for Heard {
    fn heard(&self, event: &str, params: &Value) {
        let complaint = match event {
            "Page.loadEventFired" => {
                self.loads.send_modify(|loads| *loads += 1);
                return;
            }
            "Page.javascriptDialogOpening" => {
                self.pipe.send(Some(&self.session), "Page.handleJavaScriptDialog", &json!({"accept": true}));
                format!("a dialog: {}", params["message"])
            }
            "Runtime.consoleAPICalled" if params["type"] == "error" || params["type"] == "warning" => {
                format!("the console: {}", params["args"])
            }
            "Runtime.exceptionThrown" => {
                format!("a script: {}", params["exceptionDetails"]["exception"]["description"])
            }
            "Log.entryAdded" if is_wrong(&params["entry"]) => {
                format!("the log: {} {}", params["entry"]["text"], params["entry"]["url"])
            }
            "Network.requestWillBeSent" if !self.is_own(&params["request"]["url"]) => {
                format!("a request to {}", params["request"]["url"])
            }
            _ => return,
        };
        self.complaints.lock().unwrap().push(complaint);
    }
}

impl Heard {
    /// Whether a request goes to the site; the browser's own pictures are part of it.
    fn is_own(&self, url: &Value) -> bool {
        let url = url.as_str().unwrap_or_default();
        url.starts_with(&self.site) || url.starts_with("data:")
    }
}

/// Whether an entry of the browser's log is a fault of the page. That a page was refused is none: it says so itself.
fn is_wrong(entry: &Value) -> bool {
    let refused =
        entry["source"] == "network" && !entry["url"].as_str().unwrap_or_default().contains("/assets/");
    !refused && (entry["level"] == "error" || entry["level"] == "warning")
}

/// Puts text into a script as a literal.
fn literal(text: &str) -> String {
    Value::from(text).to_string()
}

impl Page {
    /// A new page that is to show the server at this URL.
    pub(crate) async fn of(site: &str) -> Self {
        let pipe = Pipe::shared();
        let call = |method, params| async move { pipe.call(None, method, &params).await.unwrap() };
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let profile = text(&call("Target.createBrowserContext", json!({})).await["browserContextId"]);
        let target = json!({"url": "about:blank", "browserContextId": profile, "width": 1280, "height": 800});
        let target = text(&call("Target.createTarget", target).await["targetId"]);
        let session = json!({"targetId": target, "flatten": true});
        let session = text(&call("Target.attachToTarget", session).await["sessionId"]);
        let heard = Arc::new(Heard {
            pipe,
            session: session.clone(),
            site: site.to_owned(),
            complaints: Mutex::default(),
            loads: watch::Sender::new(0),
        });
        let listener: Arc<dyn Listener> = Arc::clone(&heard) as _;
        pipe.attend(&session, listener);
        let page = Self { pipe, profile, session, heard };
        for domain in ["Page", "Runtime", "Log", "Network"] {
            page.call(&format!("{domain}.enable"), json!({})).await;
        }
        page.wide(1280).await;
        page
    }

    async fn call(&self, method: &str, params: Value) -> Value {
        let reply = self.pipe.call(Some(&self.session), method, &params).await;
        reply.unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// Opens a path of the site and waits until it is loaded.
    pub(crate) async fn open(&self, path: &str) {
        let url = format!("{}{path}", self.heard.site);
        self.loading(async {
            let opened = self.call("Page.navigate", json!({"url": url})).await;
            assert!(opened["errorText"].is_null(), "{url}: {opened}");
        })
        .await;
    }

    /// Does something that loads a page, and waits until that is there.
    async fn loading(&self, action: impl Future<Output = ()>) {
        let mut loads = self.heard.loads.subscribe();
        let before = *loads.borrow_and_update();
        action.await;
        let loaded = timeout(PATIENCE, loads.wait_for(|loads| *loads > before)).await;
        assert!(loaded.is_ok(), "no page was loaded; still at {}", self.path().await);
    }

    /// Clicks something that leads to another page, and waits for that.
    pub(crate) async fn follow(&self, selector: &str) {
        self.loading(self.click(selector)).await;
    }

    /// Evaluates an expression; a promise is waited for.
    pub(crate) async fn eval(&self, expression: &str) -> Value {
        self.try_eval(expression).await.unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    async fn try_eval(&self, expression: &str) -> Result<Value, String> {
        self.try_eval_in(&self.session, expression).await
    }

    async fn try_eval_in(&self, session: &str, expression: &str) -> Result<Value, String> {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let result = self.pipe.call(Some(session), "Runtime.evaluate", &params).await?;
        match result.get("exceptionDetails") {
            Some(details) => Err(details["exception"]["description"].to_string()),
            None => Ok(result["result"]["value"].clone()),
        }
    }

    /// Waits until an expression is true.
    pub(crate) async fn until(&self, expression: &str) {
        eventually(expression, || async {
            // While a page gives way to the next one there is none to ask.
            (self.try_eval(expression).await == Ok(Value::Bool(true))).then_some(())
        })
        .await;
    }

    /// Evaluates an expression in the frame that shows another site, which has a process of its own.
    pub(crate) async fn in_frame(&self, expression: &str) -> Value {
        self.try_in_frame(expression).await.unwrap_or_else(|error| panic!("{expression}: {error}"))
    }

    async fn try_in_frame(&self, expression: &str) -> Result<Value, String> {
        let targets = self.pipe.call(None, "Target.getTargets", &json!({})).await?;
        let targets = targets["targetInfos"].as_array().map(Vec::as_slice).unwrap_or_default();
        let is_frame =
            |it: &&Value| it["type"] == "iframe" && it["browserContextId"] == self.profile.as_str();
        let frame = targets.iter().find(is_frame).ok_or("there is no frame of another site")?;
        let attach = json!({"targetId": frame["targetId"], "flatten": true});
        let attached = self.pipe.call(None, "Target.attachToTarget", &attach).await?;
        let session = attached["sessionId"].as_str().ok_or("no session")?;
        let found = self.try_eval_in(session, expression).await;
        self.pipe.send(None, "Target.detachFromTarget", &json!({"sessionId": session}));
        found
    }

    /// Waits until an expression is true in that frame.
    pub(crate) async fn until_in_frame(&self, expression: &str) {
        eventually(expression, || async {
            (self.try_in_frame(expression).await == Ok(Value::Bool(true))).then_some(())
        })
        .await;
    }

    /// Path and query of the page that is shown.
    pub(crate) async fn path(&self) -> String {
        self.eval("location.pathname + location.search").await.as_str().unwrap().to_owned()
    }

    /// What a person reads on it.
    pub(crate) async fn text(&self) -> String {
        self.eval("document.body.innerText").await.as_str().unwrap().to_owned()
    }

    /// Waits until the page says this.
    pub(crate) async fn see(&self, text: &str) {
        let shown = format!("document.body.innerText.includes({})", literal(text));
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while self.try_eval(&shown).await != Ok(Value::Bool(true)) {
            assert!(
                tokio::time::Instant::now() < deadline,
                "{text:?} is not on {}: {}",
                self.path().await,
                self.text().await
            );
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    }

    /// Whether there is such an element.
    pub(crate) async fn has(&self, selector: &str) -> bool {
        self.eval(&format!("document.querySelector({}) !== null", literal(selector))).await == true
    }

    /// Clicks the middle of an element, which nothing may cover.
    pub(crate) async fn click(&self, selector: &str) {
        let place = format!(
            "(() => {{
               const one = document.querySelector({selector});
               if (!one) return 'there is none';
               one.scrollIntoView({{block: 'center', inline: 'nearest'}});
               const box = one.getClientRects()[0];
               if (!box) return 'it is not shown';
               const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
               const top = document.elementFromPoint(x, y);
               if (!top || !(one.contains(top) || top.contains(one))) return 'it is covered';
               return [x, y];
             }})()",
            selector = literal(selector)
        );
        let place = self.eval(&place).await;
        assert!(place.is_array(), "{selector} on {}: {place}\n{}", self.path().await, self.text().await);
        for kind in ["mousePressed", "mouseReleased"] {
            let params =
                json!({"type": kind, "x": place[0], "y": place[1], "button": "left", "clickCount": 1});
            self.call("Input.dispatchMouseEvent", params).await;
        }
    }

    /// Replaces the content of a field.
    pub(crate) async fn fill(&self, selector: &str, text: &str) {
        self.click(selector).await;
        self.eval("document.activeElement.select()").await;
        self.call("Input.insertText", json!({"text": text})).await;
    }

    /// Presses a key that writes one character, or `Enter`, `Tab` and `Escape`.
    pub(crate) async fn press(&self, key: &str) {
        let (code, text) = match key {
            "Enter" => (13, "\r"),
            "Tab" => (9, ""),
            "Escape" => (27, ""),
            other => (0, other),
        };
        let down = if text.is_empty() { "rawKeyDown" } else { "keyDown" };
        for kind in [down, "keyUp"] {
            let mut params = json!({"type": kind, "key": key, "windowsVirtualKeyCode": code});
            if kind == "keyDown" {
                params["text"] = text.into();
            }
            self.call("Input.dispatchKeyEvent", params).await;
        }
    }

    /// Presses Enter in a form, and waits for the page that it leads to.
    pub(crate) async fn enter(&self) {
        self.loading(self.press("Enter")).await;
    }

    /// Gives the page this width.
    pub(crate) async fn wide(&self, width: u32) {
        let metrics = json!({"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", metrics).await;
    }

    /// `light` or `dark`.
    pub(crate) async fn scheme(&self, scheme: &str) {
        let features = json!([
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce"}
        ]);
        self.call("Emulation.setEmulatedMedia", json!({"features": features})).await;
    }

    /// From the next page on no script runs.
    pub(crate) async fn without_scripts(&self) {
        self.call("Emulation.setScriptExecutionDisabled", json!({"value": true})).await;
    }

    /// Lets pages of the site write to the clipboard.
    pub(crate) async fn allow_clipboard(&self) {
        let permissions = json!({"permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"], "browserContextId": self.profile});
        self.pipe.call(None, "Browser.grantPermissions", &permissions).await.unwrap();
    }

    /// The rules of the accessibility checker that the page breaks.
    pub(crate) async fn barriers(&self) -> Vec<String> {
        super::axe::check(self).await
    }

    /// The role of everything on the page, as programs that read it aloud find it.
    pub(crate) async fn roles(&self) -> Vec<String> {
        let tree = self.call("Accessibility.getFullAXTree", json!({})).await;
        let nodes = tree["nodes"].as_array().unwrap().iter().filter(|node| node["ignored"] != true);
        nodes.filter_map(|node| node["role"]["value"].as_str().map(ToOwned::to_owned)).collect()
    }

    /// What went wrong on the pages so far: messages of the console, dialogs, requests to elsewhere. Asking forgets it.
    pub(crate) fn complaints(&self) -> Vec<String> {
        std::mem::take(&mut *self.heard.complaints.lock().unwrap())
    }

    /// Stores a picture of what is shown, or of the whole page.
    pub(crate) async fn picture(&self, file: &Path, whole: bool) {
        let params = json!({"format": "png", "captureBeyondViewport": whole, "optimizeForSpeed": false});
        let picture = self.call("Page.captureScreenshot", params).await;
        std::fs::write(file, STANDARD.decode(picture["data"].as_str().unwrap()).unwrap()).unwrap();
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        self.pipe.leave(&self.session);
        self.pipe.send(None, "Target.disposeBrowserContext", &json!({"browserContextId": self.profile}));
    }
}
