//! Writes ONNX files, for models that no exporter would write.

/// A message of protobuf.
#[derive(Clone, Debug, Default)]
pub struct Message(pub Vec<u8>);

impl Message {
    fn varint(&mut self, mut value: u64) {
        while value > 0x7f {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    pub fn integer(mut self, field: u64, value: i64) -> Self {
        self.varint(field << 3);
        self.varint(value as u64);
        self
    }

    pub fn float(mut self, field: u64, value: f32) -> Self {
        self.varint(field << 3 | 5);
        self.0.extend(value.to_le_bytes());
        self
    }

    pub fn bytes(mut self, field: u64, value: &[u8]) -> Self {
        self.varint(field << 3 | 2);
        self.varint(value.len() as u64);
        self.0.extend(value);
        self
    }

    pub fn text(self, field: u64, value: &str) -> Self {
        self.bytes(field, value.as_bytes())
    }
}

/// A node without a name of its own: its first output names it.
pub fn node(operation: &str, inputs: &[&str], outputs: &[&str]) -> Message {
    let node = inputs
        .iter()
        .fold(Message::default(), |node, name| node.text(1, name));
    outputs
        .iter()
        .fold(node, |node, name| node.text(2, name))
        .text(4, operation)
}

/// An attribute, to add to a node as its field 5.
pub fn integer(name: &str, value: i64) -> Message {
    Message::default().text(1, name).integer(3, value).integer(20, 2)
}

/// Several integers, to add to a node as its field 5.
pub fn several(name: &str, values: &[i64]) -> Message {
    let attribute = Message::default().text(1, name).integer(20, 7);
    values
        .iter()
        .fold(attribute, |attribute, value| attribute.integer(8, *value))
}

/// A node that holds a tensor.
pub fn constant(output: &str, tensor: &Message) -> Message {
    let value = Message::default()
        .text(1, "value")
        .bytes(5, &tensor.0)
        .integer(20, 4);
    node("Constant", &[], &[output]).bytes(5, &value.0)
}

/// Floats under a name.
pub fn floats(name: &str, shape: &[i64], values: &[f32]) -> Message {
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    tensor(name, shape, 1, &bytes)
}

/// Integers under a name.
pub fn integers(name: &str, shape: &[i64], values: &[i64]) -> Message {
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    tensor(name, shape, 7, &bytes)
}

/// A tensor of ONNX's type with this number.
pub fn tensor(name: &str, shape: &[i64], kind: i64, bytes: &[u8]) -> Message {
    let tensor = shape
        .iter()
        .fold(Message::default(), |tensor, axis| tensor.integer(1, *axis));
    tensor.integer(2, kind).text(8, name).bytes(9, bytes)
}

/// A model in the making.
#[derive(Clone, Debug, Default)]
pub struct Model {
    graph: Message,
    trained: Vec<String>,
}

impl Model {
    /// A node.
    pub fn node(mut self, node: Message) -> Self {
        self.graph = self.graph.bytes(1, &node.0);
        self
    }

    /// A stored value.
    pub fn value(mut self, tensor: Message) -> Self {
        self.graph = self.graph.bytes(5, &tensor.0);
        self
    }

    /// A stored value that is trained.
    pub fn trained(mut self, name: &str, shape: &[i64], values: &[f32]) -> Self {
        self.trained.push(name.to_owned());
        self.value(floats(name, shape, values))
    }

    /// An input, of ONNX's type with this number.
    pub fn input(mut self, name: &str, kind: i64) -> Self {
        let kind = Message::default().integer(1, kind);
        let kind = Message::default().bytes(1, &kind.0);
        let info = Message::default().text(1, name).bytes(2, &kind.0);
        self.graph = self.graph.bytes(11, &info.0);
        self
    }

    /// The file. Its loss is the value `loss`.
    pub fn file(self) -> Vec<u8> {
        let output = Message::default().text(1, "loss");
        let graph = self.graph.bytes(12, &output.0);
        let opset = Message::default().integer(2, 23);
        let mut model = Message::default().bytes(7, &graph.0).bytes(8, &opset.0);
        if !self.trained.is_empty() {
            let trained = Message::default()
                .text(1, "annulus.trained")
                .text(2, &self.trained.join("\n"));
            model = model.bytes(14, &trained.0);
        }
        model.0
    }
}

/// A model whose loss is the mean of `x * w`, where `between` makes `y` of `x`.
pub fn scaled(between: impl FnOnce(Model) -> Model) -> Vec<u8> {
    let model = Model::default()
        .input("x", 1)
        .trained("w", &[3], &[1.0, 2.0, 3.0]);
    between(model)
        .node(node("Mul", &["y", "w"], &["scaled"]))
        .node(node("ReduceMean", &["scaled"], &["loss"]).bytes(5, &integer("keepdims", 0).0))
        .file()
}
