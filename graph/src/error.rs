//! Errors of reading and running a graph.

use std::fmt;

/// Why a graph cannot be read or run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GraphError {
    /// The bytes are no ONNX model, or a damaged one.
    #[error("cannot read the ONNX model: {problem}")]
    File {
        /// What is wrong.
        problem: String,
    },
    /// The bytes of a safetensors file cannot be used.
    #[error("cannot use the tensors of the safetensors file: {problem}")]
    Weights {
        /// What is wrong.
        problem: String,
    },
    /// Operations that this crate does not have, all at once.
    #[error("the model uses operations that Annulus does not have: {nodes}")]
    UnknownOperations {
        /// Kinds with the names of their nodes.
        nodes: String,
    },
    /// The model as a whole cannot be trained.
    #[error("{problem}")]
    Model {
        /// What is wrong, and what to do.
        problem: String,
    },
    /// One node is at fault.
    #[error("{node}: {problem}")]
    Node {
        /// The node.
        node: NodeName,
        /// What is wrong.
        problem: String,
    },
    /// An input does not fit the model.
    #[error("the input `{input}` {problem}")]
    Input {
        /// The input's name.
        input: String,
        /// What is wrong.
        problem: String,
    },
}

impl GraphError {
    pub(crate) fn file(problem: impl Into<String>) -> Self {
        let problem = problem.into();
        Self::File { problem }
    }

    pub(crate) fn model(problem: impl Into<String>) -> Self {
        let problem = problem.into();
        Self::Model { problem }
    }

    pub(crate) fn weights(problem: impl Into<String>) -> Self {
        let problem = problem.into();
        Self::Weights { problem }
    }

    pub(crate) fn input(input: &str, problem: impl Into<String>) -> Self {
        let (input, problem) = (input.to_owned(), problem.into());
        Self::Input { input, problem }
    }
}

/// A node in messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeName {
    /// Its name, or that of its first output if it has none.
    pub name: String,
    /// Its operation.
    pub operation: String,
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node `{}` ({})", self.name, self.operation)
    }
}
