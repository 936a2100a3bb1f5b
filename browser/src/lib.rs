//! A participant in a browser tab.
#![cfg(target_family = "wasm")]
use wasm_bindgen::prelude::*;

/// Start.
#[wasm_bindgen]
pub fn hello() -> String {
    let r = annulus::recipe::Recipe::of::<annulus::tasks::digits::Digits>();
    let g = annulus::recipe::Recipe::of::<annulus::tasks::gpt::Gpt>();
    let l = (r.load)("{}", None).unwrap();
    let m = (g.load)("{}", None).unwrap();
    format!("{} {}", l.samples, m.samples)
}
