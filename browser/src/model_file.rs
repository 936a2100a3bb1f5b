//! The model that a tab holds as a file, the same that `annulus export` writes: safetensors, with what another program needs.

use annulus_core::{Digest, Layout, Manifest, Round};
use serde_json::{Map, Value, json};

/// The parameters that a tab holds, and when all members had them.
#[derive(Clone, Copy)]
pub struct Held<'a> {
    /// The vector.
    pub params: &'a [f32],
    /// After this round.
    pub round: Round,
    /// Of the whole state then.
    pub digest: Option<Digest>,
}

/// The file. `of_task`: what the task says of the model.
pub fn model_file(manifest: &Manifest, of_task: Vec<(&'static str, String)>, held: Held<'_>) -> Vec<u8> {
    let own = [
        ("task", manifest.task.clone()),
        ("task_config", manifest.task_config.clone()),
        ("run", manifest.run_id().to_hex()),
        ("data", manifest.data.to_hex()),
        ("round", held.round.to_string()),
        (
            "digest",
            held.digest.map(|digest| digest.to_hex()).unwrap_or_default(),
        ),
    ];
    // What a task calls by the names of ours would hide them.
    let metadata = of_task.into_iter().chain(own);
    let metadata: Map<String, Value> = metadata
        .map(|(key, text)| (key.to_owned(), text.into()))
        .collect();
    let header = header(&manifest.layout, metadata);
    let mut file = Vec::with_capacity(8 + header.len() + 4 * held.params.len());
    file.extend((header.len() as u64).to_le_bytes());
    file.extend(header.as_bytes());
    file.extend(held.params.iter().flat_map(|number| number.to_le_bytes()));
    file
}

/// Where each tensor lies behind the header, padded so that numbers lie where processors like them.
fn header(layout: &Layout, metadata: Map<String, Value>) -> String {
    let tensor = |offset: usize, len: usize| [4 * offset, 4 * (offset + len)];
    let tensors = layout.tensors.iter().map(|spec| {
        let place = tensor(spec.offset, spec.len());
        (
            spec.name.clone(),
            json!({"dtype": "F32", "shape": spec.shape, "data_offsets": place}),
        )
    });
    let mut header: Map<String, Value> = tensors.collect();
    header.insert("__metadata__".into(), metadata.into());
    let mut text = Value::Object(header).to_string();
    text.extend(std::iter::repeat_n(
        ' ',
        text.len().next_multiple_of(8) - text.len(),
    ));
    text
}
