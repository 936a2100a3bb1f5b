//! What the page's worker calls: all checks, one after the other.

use crate::cases::bench::{Bench, Row};
use crate::cases::{attentions, channels, convolutions, layers, products, vectors};
use crate::{ops, planted};
use annulus_browser::open_gpu;
use annulus_shaders::{KERNELS, Kernel};
use burn::tensor::DeviceKind;
use js_sys::{Array, Date, Function, Promise};
use serde_json::{Value, json};
use wasm_bindgen::prelude::*;
use wasm_bindgen_futures::JsFuture;

/// Compiles texts; null, or `{name, problem}` of the first that fails.
async fn compile(compiler: &Function, texts: &[(&str, &str)]) -> Result<Value, JsValue> {
    let names: Array = texts.iter().map(|(name, _)| JsValue::from(*name)).collect();
    let codes: Array = texts.iter().map(|(_, text)| JsValue::from(*text)).collect();
    let promise: Promise = compiler.call2(&JsValue::NULL, &names, &codes)?.dyn_into()?;
    let failed = JsFuture::from(promise).await?;
    let of = |key: &str| js_sys::Reflect::get(&failed, &key.into()).ok()?.as_string();
    Ok(if failed.is_null() {
        Value::Null
    } else {
        json!({"name": of("name"), "problem": of("problem")})
    })
}

/// Runs all checks. `compiler` is what the product's page compiles kernels with: `compile` of its `gpu.js`. `post` is given JSON text: `started`, `compiled`, a `planted` for each bad text, a `result` for each kernel and
/// operation, and `done`.
///
/// # Errors
///
/// If the device is lost or there is none.
#[wasm_bindgen]
pub async fn check(compiler: Function, post: Function) -> Result<(), JsValue> {
    let began = Date::now();
    let seconds = || (Date::now() - began) / 1000.0;
    let say = |message: Value| {
        let _ = post.call1(&JsValue::NULL, &message.to_string().into());
    };
    say(json!({"type": "started"}));
    let kernels: Vec<(&str, &str)> = KERNELS.iter().map(|k: &&Kernel| (k.name, k.text())).collect();
    say(json!({"type": "compiled", "failed": compile(&compiler, &kernels).await?, "count": kernels.len()}));

    let good = planted::good();
    say(json!({"type": "planted", "name": null, "failed": compile(&compiler, &[("good", &good)]).await?}));
    for bad in planted::all() {
        let texts = [("good", good.as_str()), (bad.name, &bad.text), ("better", &good)];
        say(json!({
            "type": "planted",
            "name": bad.name,
            "line": bad.line,
            "failed": compile(&compiler, &texts).await?,
            "naga": bad.naga_refuses(),
            "naga_expected": bad.naga_sees_it,
        }));
    }

    // Which texts an operation takes depends on the kind of device that it is told.
    let emulated = open_gpu(DeviceKind::Cpu).await?;
    let mut bench = Bench::new(emulated.clone());
    products::all(&mut bench).await;
    say(json!({"type": "part", "name": "products", "seconds": seconds()}));
    attentions::all(&mut bench).await;
    convolutions::all(&mut bench).await;
    channels::all(&mut bench).await;
    layers::all(&mut bench).await;
    say(json!({"type": "part", "name": "layers", "seconds": seconds()}));
    vectors::all(&mut bench).await;
    say(json!({"type": "part", "name": "vectors", "seconds": seconds()}));
    for kernel in KERNELS {
        let row = bench.rows.remove(kernel.name).unwrap_or_default();
        say(result(kernel.name, row));
    }
    let strangers: Vec<String> = bench.rows.keys().cloned().collect();
    for (class, device) in [
        ("emulated", emulated),
        ("gpu", open_gpu(DeviceKind::DefaultDevice).await?),
    ] {
        ops::all(&mut bench, class, &device).await;
        say(json!({"type": "part", "name": class, "seconds": seconds()}));
    }
    for (name, row) in bench.rows {
        say(result(&name, row));
    }
    say(json!({"type": "done", "seconds": seconds(), "kernels": KERNELS.len(), "strangers": strangers}));
    Ok(())
}

/// What is said of a kernel or an operation. One that nothing was compared of is not well.
fn result(name: &str, row: Row) -> Value {
    let ok = row.cases > 0 && row.problem.is_none();
    let Row {
        cases,
        error,
        problem,
    } = row;
    json!({"type": "result", "name": name, "cases": cases, "error": error, "ok": ok, "problem": problem})
}
