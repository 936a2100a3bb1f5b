//! Parts of the browser that `web-sys` does not know yet or hides: WebTransport, time, tasks.
//!
//! It must know nothing of the protocol.

use js_sys::{Function, Promise, Uint8Array};
use std::cell::RefCell;
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;

#[wasm_bindgen]
extern "C" {
    /// A session with a server (W3C WebTransport).
    pub type WebTransport;
    #[wasm_bindgen(constructor, catch)]
    pub fn new(url: &str, options: &JsValue) -> Result<WebTransport, JsValue>;
    #[wasm_bindgen(method, getter)]
    pub fn ready(this: &WebTransport) -> Promise;
    #[wasm_bindgen(method, getter)]
    pub fn closed(this: &WebTransport) -> Promise;
    #[wasm_bindgen(method, js_name = createBidirectionalStream)]
    pub fn create_bidirectional_stream(this: &WebTransport) -> Promise;
    #[wasm_bindgen(method)]
    pub fn close(this: &WebTransport, info: &JsValue);

    /// One of its streams.
    pub type BidirectionalStream;
    #[wasm_bindgen(method, getter)]
    pub fn readable(this: &BidirectionalStream) -> web_sys::ReadableStream;
    #[wasm_bindgen(method, getter)]
    pub fn writable(this: &BidirectionalStream) -> web_sys::WritableStream;

    #[wasm_bindgen(js_name = fetch)]
    fn fetch(url: &str, options: &JsValue) -> Promise;
    #[wasm_bindgen(js_name = setTimeout)]
    fn set_timeout(handler: &Function, milliseconds: f64) -> f64;
    #[wasm_bindgen(js_name = clearTimeout)]
    fn clear_timeout(timer: f64);
    #[wasm_bindgen(js_namespace = performance, js_name = now)]
    fn performance_now() -> f64;
    #[wasm_bindgen(js_namespace = console, js_name = error)]
    pub fn console_error(text: &str);
}

/// Microseconds since the worker began.
pub fn now() -> u64 {
    (performance_now() * 1000.0) as u64
}

/// When the worker began, in seconds since 1970.
pub fn epoch_s() -> u64 {
    (js_sys::Date::now() / 1000.0) as u64 - now() / 1_000_000
}

/// Waits for so long, at least.
pub async fn sleep(milliseconds: f64) {
    /// Given up with the future: who waits for several things at once drops many.
    struct Timer(f64);
    impl Drop for Timer {
        fn drop(&mut self) {
            clear_timeout(self.0);
        }
    }
    let mut timer = None;
    let promise = Promise::new(&mut |resolve, _| {
        timer = Some(Timer(set_timeout(&resolve, milliseconds.max(0.0))));
    });
    let _ = JsFuture::from(promise).await;
}

/// Lets everything else that waits have its turn: frames that arrived, words from the page. A timer would do, but
/// browsers make nested ones wait for 4 ms.
pub async fn next_task() {
    thread_local! {
        static WAITING: RefCell<Option<Function>> = const { RefCell::new(None) };
        static CHANNEL: (web_sys::MessageChannel, Closure<dyn FnMut()>) = {
            let channel = web_sys::MessageChannel::new().expect("workers have message channels");
            let closure = Closure::<dyn FnMut()>::new(|| {
                let resolve = WAITING.with(|waiting| waiting.borrow_mut().take());
                if let Some(resolve) = resolve {
                    let _ = resolve.call0(&JsValue::UNDEFINED);
                }
            });
            channel.port1().set_onmessage(Some(closure.as_ref().unchecked_ref()));
            (channel, closure)
        };
    }
    let promise = Promise::new(&mut |resolve, _| {
        let before = WAITING.with(|waiting| waiting.borrow_mut().replace(resolve));
        if let Some(before) = before {
            // Two who wait at once: neither is to wait for ever.
            let _ = before.call0(&JsValue::UNDEFINED);
        }
        CHANNEL.with(|(channel, _)| channel.port2().post_message(&JsValue::NULL).unwrap_or(()));
    });
    let _ = JsFuture::from(promise).await;
}

/// The text at a URL of the page's own server.
pub async fn get(url: &str) -> Result<String, JsValue> {
    let options = object(&[("cache", "no-store".into())]);
    let response: web_sys::Response = JsFuture::from(fetch(url, &options)).await?.dyn_into()?;
    if !response.ok() {
        return Err(format!("{} {}", response.status(), response.status_text()).into());
    }
    let text = JsFuture::from(response.text()?).await?;
    Ok(text.as_string().unwrap_or_default())
}

/// A plain object.
pub fn object(fields: &[(&str, JsValue)]) -> JsValue {
    let object = js_sys::Object::new();
    for (name, value) in fields {
        // Only a sealed object refuses a field.
        let _ = js_sys::Reflect::set(&object, &(*name).into(), value);
    }
    object.into()
}

/// A field of an object; undefined if there is none.
pub fn field(value: &JsValue, name: &str) -> JsValue {
    js_sys::Reflect::get(value, &name.into()).unwrap_or(JsValue::UNDEFINED)
}

/// What an exception says.
pub fn words(error: &JsValue) -> String {
    let message = field(error, "message").as_string();
    message
        .or_else(|| error.as_string())
        .unwrap_or_else(|| format!("{error:?}"))
}

/// A copy, for the browser to keep.
pub fn bytes(bytes: &[u8]) -> Uint8Array {
    Uint8Array::from(bytes)
}
