//! What is longer than the project wants it, and why it may be. What is no longer long must leave the list.

/// A name and its reason: a file's path, or a function's path and name with a space between.
pub type Exceptions = [(&'static str, &'static str)];

/// Files with more lines than [`super::FILE_LINES`], without tests.
pub const FILES: &Exceptions = &[
    (
        "core/src/peer/agreement.rs",
        "rules that are right only together, and their argument",
    ),
    (
        "core/src/peer/member.rs",
        "the dispatch of a member's inputs, and how it begins a round and puts its values in",
    ),
    (
        "core/src/peer/newcomer.rs",
        "what to fetch and when to enter hang on one state",
    ),
    (
        "core/src/sim/ledger.rs",
        "the definition that the protocol is held to, in one place",
    ),
];

/// Functions with more lines than [`super::FUNCTION_LINES`].
pub const FUNCTIONS: &Exceptions = &[];
