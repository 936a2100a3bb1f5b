//! A trained model as a GGUF file, which llama.cpp and the programs built on it run.
//!
//! The model is llama.cpp's architecture `gpt2`: learned positions, norms before the branches, queries, keys and values side by
//! side, the output layer is the token embedding. One thing differs: llama.cpp computes GELU by tanh, and this model by the error
//! function. The largest difference of the two functions is 0.0005.
//!
//! A vocabulary of bytes or characters becomes a byte-level BPE vocabulary, as GPT-2's. Bytes need no merges. A character of
//! several bytes is made by merging them from the left.
//!
//! The format is that of `docs/gguf.md` in ggml-org/ggml, version 3.

use std::collections::BTreeMap;

use annulus_graph::{Blocks, Packing};
use burn::tensor::f16;

use super::presets::Shape;
use crate::task::{FileTensor, TaskError};

/// Tensors begin at multiples of this.
const ALIGNMENT: usize = 32;

/// Added to a variance by the norms of [`Transformer`](super::model::Transformer).
const EPSILON: f32 = 1e-5;

/// GGML's number of a type of tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q8_0 = 8,
}

impl Kind {
    /// The number that stands for a file most of whose matrices are of this kind (`llama_ftype`).
    fn of_file(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q8_0 => 7,
        }
    }
}

impl From<Blocks> for Kind {
    fn from(blocks: Blocks) -> Self {
        match blocks {
            Blocks::Q8_0 => Self::Q8_0,
            Blocks::Q4_0 => Self::Q4_0,
        }
    }
}

/// The file of a model. Tensors in blocks are copied; of the others, matrices become halves if `halves` is set.
///
/// # Errors
///
/// If the file lacks something, or its model is no such transformer.
pub(super) fn file(
    metadata: &BTreeMap<String, String>,
    tensors: &[FileTensor],
    halves: bool,
) -> Result<Vec<u8>, TaskError> {
    let shape = shape(metadata)?;
    let Shape {
        width,
        layers,
        heads,
        hidden,
        context,
        vocabulary,
        ..
    } = shape;
    if shape.inner() != width {
        return Err(
            "llama.cpp's gpt2 has no fewer attention heads than fill the width, and this model was pruned"
                .into(),
        );
    }
    let model = Model {
        tensors,
        shape,
        halves,
    };
    let entries = model.entries()?;
    let (tokens, kinds, merges) = vocabulary_of(metadata, vocabulary)?;
    let kind = entries.iter().find(|entry| entry.name == "blk.0.ffn_up.weight");
    let mut facts = Facts::default();
    facts.text("general.architecture", "gpt2");
    facts.text(
        "general.name",
        metadata.get("run").map_or("annulus", String::as_str),
    );
    facts.number("general.file_type", kind.map_or(0, |entry| entry.kind.of_file()));
    for (key, value) in [
        ("context_length", context),
        ("embedding_length", width),
        ("feed_forward_length", hidden),
        ("block_count", layers),
        ("attention.head_count", heads),
    ] {
        facts.number(&format!("gpt2.{key}"), value as u32);
    }
    facts.float("gpt2.attention.layer_norm_epsilon", EPSILON);
    facts.text("tokenizer.ggml.model", "gpt2");
    facts.text("tokenizer.ggml.pre", "gpt-2");
    facts.texts("tokenizer.ggml.tokens", &tokens);
    facts.numbers("tokenizer.ggml.token_type", &kinds);
    facts.texts("tokenizer.ggml.merges", &merges);
    // Texts have no mark at their ends; without these, token 11 would be one. A text has no NUL either.
    facts.number("tokenizer.ggml.bos_token_id", 0);
    facts.number("tokenizer.ggml.eos_token_id", 0);
    facts.truth("tokenizer.ggml.add_bos_token", false);
    Ok(assembled(&facts, &entries))
}

/// The sizes in a model file's metadata, each of which must be sensible.
fn shape(metadata: &BTreeMap<String, String>) -> Result<Shape, TaskError> {
    let number = |key: &str| {
        let number = metadata.get(key).and_then(|text| text.parse::<usize>().ok());
        let number = number.filter(|number| (1..=1 << 20).contains(number));
        number.ok_or_else(|| format!("the model file does not say its {key}: export it again"))
    };
    let (heads, width) = (number("heads")?, number("width")?);
    // Files of earlier versions do not say these two.
    let or = |key: &str, usual: usize| {
        if metadata.contains_key(key) {
            number(key)
        } else {
            Ok(usual)
        }
    };
    Ok(Shape {
        layers: number("layers")?,
        heads,
        head_size: or("head_size", width / heads)?,
        hidden: or("hidden", 4 * width)?,
        width,
        context: number("context")?,
        bias: metadata.get("bias").is_some_and(|bias| bias == "true"),
        vocabulary: number("vocabulary_size")?,
    })
}

/// A model's tensors, by their names here.
struct Model<'a> {
    tensors: &'a [FileTensor],
    shape: Shape,
    halves: bool,
}

/// A tensor of the file.
#[derive(Debug, PartialEq)]
struct Entry {
    name: String,
    /// The number that changes fastest first.
    dims: Vec<usize>,
    kind: Kind,
    data: Vec<u8>,
}

impl Model<'_> {
    fn entries(&self) -> Result<Vec<Entry>, TaskError> {
        let Shape { width, hidden, .. } = self.shape;
        let mut entries = vec![
            self.embedding("tokens", "token_embd.weight", self.shape.vocabulary, self.halves)?,
            // Positions are added to the embedding, which llama.cpp does in this type.
            self.embedding("positions", "position_embd.weight", self.shape.context, false)?,
        ];
        self.norm("norm", "output_norm", &mut entries)?;
        for layer in 0..self.shape.layers {
            let (here, there) = (format!("blocks.{layer}"), format!("blk.{layer}"));
            for (own, other) in [("norm_1", "attn_norm"), ("norm_2", "ffn_norm")] {
                self.norm(
                    &format!("{here}.{own}"),
                    &format!("{there}.{other}"),
                    &mut entries,
                )?;
            }
            for (own, other, inputs, outputs) in [
                ("attention.qkv", "attn_qkv", width, 3 * width),
                ("attention.output", "attn_output", width, width),
                ("mlp.up", "ffn_up", width, hidden),
                ("mlp.down", "ffn_down", hidden, width),
            ] {
                let (own, other) = (format!("{here}.{own}"), format!("{there}.{other}"));
                entries.push(self.linear(&own, &other, (inputs, outputs))?);
                entries.push(self.vector(&format!("{own}.bias"), &format!("{other}.bias"), outputs)?);
            }
        }
        Ok(entries)
    }

    fn tensor(&self, name: &str, shape: &[usize]) -> Result<&FileTensor, TaskError> {
        let mut tensors = self.tensors.iter();
        let found = tensors.find(|tensor| tensor.name == name && tensor.shape == shape);
        found
            .ok_or_else(|| format!("the model file has no {name} of shape {shape:?}: export it again").into())
    }

    fn norm(&self, own: &str, other: &str, entries: &mut Vec<Entry>) -> Result<(), TaskError> {
        let width = self.shape.width;
        for (of_own, of_other) in [("gamma", "weight"), ("beta", "bias")] {
            entries.push(self.vector(&format!("{own}.{of_own}"), &format!("{other}.{of_other}"), width)?);
        }
        Ok(())
    }

    /// A bias, or the scales or shifts of a norm. llama.cpp wants biases even of a model that has none.
    fn vector(&self, own: &str, other: &str, len: usize) -> Result<Entry, TaskError> {
        let none = !self.shape.bias && !own.ends_with("gamma");
        let values = match none {
            true => vec![0.0; len],
            false => self.tensor(own, &[len])?.values.clone(),
        };
        Ok(Entry {
            name: other.to_owned(),
            dims: vec![len],
            kind: Kind::F32,
            data: bytemuck::cast_slice(&values).to_vec(),
        })
    }

    /// A linear layer, here `[inputs, outputs]`.
    fn linear(&self, own: &str, other: &str, (inputs, outputs): (usize, usize)) -> Result<Entry, TaskError> {
        let tensor = self.tensor(&format!("{own}.weight"), &[inputs, outputs])?;
        let (name, dims) = (format!("{other}.weight"), vec![inputs, outputs]);
        if let Some((packing, blocks)) = copied(tensor, true, inputs) {
            let (kind, data) = (packing.blocks.into(), blocks.clone());
            return Ok(Entry {
                name,
                dims,
                kind,
                data,
            });
        }
        let column = |output| (0..inputs).map(move |input| tensor.values[input * outputs + output]);
        let values: Vec<f32> = (0..outputs).flat_map(column).collect();
        let (kind, data) = floats(&values, self.halves);
        Ok(Entry {
            name,
            dims,
            kind,
            data,
        })
    }

    /// A table of rows, which may lie in several tensors.
    fn embedding(&self, own: &str, other: &str, rows: usize, halves: bool) -> Result<Entry, TaskError> {
        let width = self.shape.width;
        let mut names =
            std::iter::once(format!("{own}.weight")).chain((0..).map(|part| format!("{own}.rest.{part}")));
        let (mut parts, mut left) = (Vec::new(), rows);
        while left > 0 {
            let name = names.next().unwrap_or_default();
            let found = self.tensors.iter().find(|tensor| tensor.name == name);
            let fits = |tensor: &&FileTensor| {
                tensor.shape.len() == 2 && (1..=left).contains(&tensor.shape[0]) && tensor.shape[1] == width
            };
            let unfit = || format!("the model file has no {name} with rows of {width}: export it again");
            let part = found.filter(fits).ok_or_else(unfit)?;
            left -= part.shape[0];
            parts.push(part);
        }
        let (name, dims) = (other.to_owned(), vec![width, rows]);
        let copies: Option<Vec<_>> = parts.iter().map(|part| copied(part, false, width)).collect();
        let same =
            |copies: &Vec<&(Packing, Vec<u8>)>| copies.iter().all(|own| own.0.blocks == copies[0].0.blocks);
        let (kind, data) = match copies.filter(same) {
            Some(copies) => {
                let data = copies
                    .iter()
                    .flat_map(|(_, blocks)| blocks.iter().copied())
                    .collect();
                (copies[0].0.blocks.into(), data)
            }
            None => {
                let values = parts.iter().flat_map(|part| part.values.iter().copied());
                floats(&values.collect::<Vec<f32>>(), halves)
            }
        };
        Ok(Entry {
            name,
            dims,
            kind,
            data,
        })
    }
}

/// A tensor's blocks, if no block goes over the end of a row of GGML's.
fn copied(tensor: &FileTensor, columns: bool, row: usize) -> Option<&(Packing, Vec<u8>)> {
    let packed = tensor.packed.as_ref();
    packed.filter(|(packing, _)| packing.columns == columns && row.is_multiple_of(32))
}

fn floats(values: &[f32], halves: bool) -> (Kind, Vec<u8>) {
    match halves {
        true => {
            let half = |value: &f32| f16::from_f32(*value).to_le_bytes();
            (Kind::F16, values.iter().flat_map(half).collect())
        }
        false => (Kind::F32, bytemuck::cast_slice(values).to_vec()),
    }
}

/// Tokens, llama.cpp's types of them, and merges.
type VocabularyOf = (Vec<String>, Vec<i32>, Vec<String>);

fn vocabulary_of(metadata: &BTreeMap<String, String>, rows: usize) -> Result<VocabularyOf, TaskError> {
    const NORMAL: i32 = 1;
    const UNUSED: i32 = 5;
    let spelled = |bytes: &[u8]| bytes.iter().map(|byte| letter(*byte)).collect::<String>();
    let (mut tokens, mut merges) = (Vec::new(), Vec::new());
    let kind = metadata.get("vocabulary").map_or("", String::as_str);
    if kind.starts_with("bytes") {
        tokens.extend((0..=255).map(|byte| spelled(&[byte])));
    } else if let Some(characters) = metadata.get("characters") {
        for character in characters.chars() {
            let bytes = character.to_string().into_bytes();
            // The first two bytes first, so that each merge finds its left side merged.
            for end in 1..bytes.len() {
                let merge = format!("{} {}", spelled(&bytes[..end]), spelled(&bytes[end..=end]));
                if !merges.contains(&merge) {
                    merges.push(merge);
                }
            }
            tokens.push(spelled(&bytes));
        }
    } else {
        return Err(
            "the model file does not say its vocabulary: export it with the run's data at hand (--data FILE)"
                .into(),
        );
    }
    if tokens.len() > rows {
        return Err(format!(
            "the model has {} tokens and only {rows} rows for them",
            tokens.len()
        )
        .into());
    }
    let mut kinds = vec![NORMAL; tokens.len()];
    tokens.extend((tokens.len()..rows).map(|token| format!("<unused {token}>")));
    kinds.resize(rows, UNUSED);
    Ok((tokens, kinds, merges))
}

/// The character by which GPT-2's vocabulary writes a byte (`bytes_to_unicode` of its `encoder.py`): itself if it can be seen,
/// otherwise one behind the Latin ones.
fn letter(byte: u8) -> char {
    let seen = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..);
    match seen(&byte) {
        true => char::from(byte),
        false => {
            let before = (0..byte).filter(|byte| !seen(byte)).count() as u32;
            char::from_u32(256 + before).unwrap_or(char::REPLACEMENT_CHARACTER)
        }
    }
}

/// The keys and values at the beginning of a file.
#[derive(Default)]
struct Facts {
    bytes: Vec<u8>,
    count: u64,
}

/// The format's number of a type of value.
mod type_of {
    pub(super) const U32: u32 = 4;
    pub(super) const I32: u32 = 5;
    pub(super) const F32: u32 = 6;
    pub(super) const BOOL: u32 = 7;
    pub(super) const TEXT: u32 = 8;
    pub(super) const ARRAY: u32 = 9;
}

impl Facts {
    fn key(&mut self, key: &str, kind: u32) {
        string(&mut self.bytes, key);
        self.bytes.extend(kind.to_le_bytes());
        self.count += 1;
    }

    fn text(&mut self, key: &str, value: &str) {
        self.key(key, type_of::TEXT);
        string(&mut self.bytes, value);
    }

    fn number(&mut self, key: &str, value: u32) {
        self.key(key, type_of::U32);
        self.bytes.extend(value.to_le_bytes());
    }

    fn float(&mut self, key: &str, value: f32) {
        self.key(key, type_of::F32);
        self.bytes.extend(value.to_le_bytes());
    }

    fn truth(&mut self, key: &str, value: bool) {
        self.key(key, type_of::BOOL);
        self.bytes.push(value.into());
    }

    fn array(&mut self, key: &str, kind: u32, len: usize) {
        self.key(key, type_of::ARRAY);
        self.bytes.extend(kind.to_le_bytes());
        self.bytes.extend((len as u64).to_le_bytes());
    }

    fn texts(&mut self, key: &str, values: &[String]) {
        self.array(key, type_of::TEXT, values.len());
        values.iter().for_each(|value| string(&mut self.bytes, value));
    }

    fn numbers(&mut self, key: &str, values: &[i32]) {
        self.array(key, type_of::I32, values.len());
        self.bytes
            .extend(values.iter().flat_map(|value| value.to_le_bytes()));
    }
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

/// Header, facts, what tensors there are, and their numbers.
fn assembled(facts: &Facts, entries: &[Entry]) -> Vec<u8> {
    let mut out = b"GGUF".to_vec();
    out.extend(3u32.to_le_bytes());
    out.extend((entries.len() as u64).to_le_bytes());
    out.extend(facts.count.to_le_bytes());
    out.extend(&facts.bytes);
    let mut offset = 0;
    for entry in entries {
        string(&mut out, &entry.name);
        out.extend((entry.dims.len() as u32).to_le_bytes());
        out.extend(entry.dims.iter().flat_map(|dim| (*dim as u64).to_le_bytes()));
        out.extend((entry.kind as u32).to_le_bytes());
        out.extend((offset as u64).to_le_bytes());
        offset += entry.data.len().next_multiple_of(ALIGNMENT);
    }
    for data in std::iter::once(&[][..]).chain(entries.iter().map(|entry| &entry.data[..])) {
        out.extend(data);
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(extra: &[(&str, &str)]) -> BTreeMap<String, String> {
        let sizes = [
            ("layers", "1"),
            ("heads", "2"),
            ("width", "32"),
            ("context", "8"),
            ("bias", "false"),
        ];
        let all = sizes.iter().chain(extra);
        all.map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn tensor(name: &str, shape: &[usize], packed: Option<(Blocks, bool)>) -> FileTensor {
        let values: Vec<f32> = (0..shape.iter().product::<usize>()).map(|at| at as f32).collect();
        let packed = packed.map(|(blocks, columns)| {
            let packing = Packing {
                blocks,
                columns,
                shape: shape.to_vec(),
            };
            let blocks = packing.pack(&values).unwrap();
            (packing, blocks)
        });
        FileTensor {
            name: name.into(),
            shape: shape.to_vec(),
            values,
            packed,
        }
    }

    fn model(blocks: Option<Blocks>) -> Vec<FileTensor> {
        let linear = |name: &str, shape: &[usize]| tensor(name, shape, blocks.map(|blocks| (blocks, true)));
        vec![
            linear("blocks.0.attention.output.weight", &[32, 32]),
            linear("blocks.0.attention.qkv.weight", &[32, 96]),
            linear("blocks.0.mlp.down.weight", &[128, 32]),
            linear("blocks.0.mlp.up.weight", &[32, 128]),
            tensor("blocks.0.norm_1.gamma", &[32], None),
            tensor("blocks.0.norm_2.gamma", &[32], None),
            tensor("norm.gamma", &[32], None),
            tensor("positions.weight", &[8, 32], None),
            tensor("tokens.rest.0", &[60, 32], blocks.map(|blocks| (blocks, false))),
            tensor("tokens.weight", &[200, 32], blocks.map(|blocks| (blocks, false))),
        ]
    }

    fn bytes_of(rows: &str) -> BTreeMap<String, String> {
        metadata(&[
            ("vocabulary_size", rows),
            ("vocabulary", "bytes: a token is the value of a byte"),
        ])
    }

    /// The beginning of a file as the format's text says it, byte for byte.
    #[test]
    fn a_file_begins_as_the_format_says() {
        let mut facts = Facts::default();
        facts.text("a", "b");
        let entry = Entry {
            name: "t".into(),
            dims: vec![3, 1],
            kind: Kind::F16,
            data: vec![1, 2, 3, 4, 5, 6],
        };
        let file = assembled(&facts, &[entry]);
        let mut expected = b"GGUF\x03\0\0\0".to_vec();
        expected.extend(1u64.to_le_bytes());
        expected.extend(1u64.to_le_bytes());
        expected.extend(b"\x01\0\0\0\0\0\0\0a\x08\0\0\0\x01\0\0\0\0\0\0\0b");
        expected.extend(
            b"\x01\0\0\0\0\0\0\0t\x02\0\0\0\x03\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0",
        );
        expected.resize(expected.len().next_multiple_of(32), 0);
        expected.extend([1, 2, 3, 4, 5, 6]);
        expected.resize(expected.len().next_multiple_of(32), 0);
        assert_eq!(file, expected);
    }

    #[test]
    fn linear_layers_are_turned_and_parts_of_the_embedding_joined() {
        let tensors = model(None);
        let model = Model {
            tensors: &tensors,
            shape: shape(&bytes_of("260")).unwrap(),
            halves: false,
        };
        let entries = model.entries().unwrap();
        let find = |name: &str| entries.iter().find(|entry| entry.name == name).unwrap();
        let up = find("blk.0.ffn_up.weight");
        let numbers: &[f32] = bytemuck::cast_slice(&up.data);
        // The first row is the first output's weights.
        assert_eq!(
            (&up.dims[..], &numbers[..3], numbers[32]),
            (&[32, 128][..], &[0.0, 128.0, 256.0][..], 1.0)
        );
        let tokens: &[f32] = bytemuck::cast_slice(&find("token_embd.weight").data);
        assert_eq!(
            (tokens.len(), tokens[6399], tokens[6400]),
            (260 * 32, 6399.0, 0.0)
        );
        assert_eq!(find("blk.0.attn_qkv.bias").data, [0; 4 * 96]);
        assert_eq!(entries.len(), 2 + 2 + 12);
    }

    #[test]
    fn blocks_are_copied() {
        for (blocks, kind, bytes) in [(Blocks::Q8_0, Kind::Q8_0, 34), (Blocks::Q4_0, Kind::Q4_0, 18)] {
            let tensors = model(Some(blocks));
            let model = Model {
                tensors: &tensors,
                shape: shape(&bytes_of("260")).unwrap(),
                halves: true,
            };
            let entries = model.entries().unwrap();
            let find = |name: &str| entries.iter().find(|entry| entry.name == name).unwrap();
            let up = find("blk.0.ffn_up.weight");
            assert_eq!((up.kind, up.data.len()), (kind, 128 * bytes));
            assert_eq!(up.data, tensors[3].packed.as_ref().unwrap().1);
            let tokens = find("token_embd.weight");
            assert_eq!((tokens.kind, tokens.data.len()), (kind, 260 * bytes));
            assert_eq!(find("position_embd.weight").kind, Kind::F32);
        }
    }

    #[test]
    fn bytes_are_spelled_as_gpt2_does() {
        assert_eq!(
            (letter(b' '), letter(b'\n'), letter(b'A'), letter(0xad)),
            ('Ġ', 'Ċ', 'A', 'Ń')
        );
        let (tokens, kinds, merges) = vocabulary_of(&bytes_of("258"), 258).unwrap();
        let different: std::collections::BTreeSet<_> = tokens.iter().collect();
        assert_eq!(
            (different.len(), &*tokens[257], kinds[255], kinds[256]),
            (258, "<unused 257>", 1, 5)
        );
        assert!(merges.is_empty());
    }

    #[test]
    fn characters_of_several_bytes_are_merged() {
        let characters = metadata(&[("characters", "a\u{e9}\u{20ac}")]);
        let (tokens, _, merges) = vocabulary_of(&characters, 3).unwrap();
        assert_eq!(tokens, ["a", "Ã©", "âĤ¬"]);
        assert_eq!(merges, ["Ã ©", "â Ĥ", "âĤ ¬"]);
    }

    #[test]
    fn a_file_that_lacks_something_is_refused() {
        let tensors = model(None);
        for (metadata, tensors, told) in [
            (metadata(&[]), &tensors[..], "vocabulary_size"),
            (
                metadata(&[("vocabulary_size", "260")]),
                &tensors,
                "does not say its vocabulary",
            ),
            (bytes_of("999"), &tensors, "tokens.rest.1"),
            (bytes_of("260"), &tensors[1..], "blocks.0.attention.output.weight"),
        ] {
            let error = file(&metadata, tensors, false).unwrap_err().to_string();
            assert!(error.contains(told), "{error}");
        }
        // More tokens than rows of the embedding.
        assert!(vocabulary_of(&bytes_of("200"), 200).is_err());
    }
}
