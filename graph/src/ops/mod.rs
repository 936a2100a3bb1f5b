//! The operations, one table for each subject.
//!
//! Each operation checks the shapes and types of its inputs, and accounts for what it makes, before Burn sees them: Burn
//! panics where this must be an error.

mod attention;
mod comparison;
mod constant;
mod convolution;
mod derived;
mod dropout;
mod elementwise;
mod fused;
mod gather;
mod largest;
mod layout;
mod loss;
mod norm;
mod pooling;
mod product;
mod random;
mod recurrent;
mod reduce;
mod resize;
mod scatter;
mod slice;

use crate::pass::Kind;

const TABLES: [&[Kind]; 20] = [
    attention::KINDS,
    comparison::KINDS,
    constant::KINDS,
    convolution::KINDS,
    dropout::KINDS,
    elementwise::KINDS,
    fused::KINDS,
    gather::KINDS,
    largest::KINDS,
    layout::KINDS,
    loss::KINDS,
    norm::KINDS,
    pooling::KINDS,
    product::KINDS,
    random::KINDS,
    recurrent::KINDS,
    reduce::KINDS,
    resize::KINDS,
    scatter::KINDS,
    slice::KINDS,
];

/// The kind of operation with this name.
pub(crate) fn find(domain: &str, name: &str) -> Option<&'static Kind> {
    let mut kinds = TABLES.into_iter().flatten();
    kinds.find(|kind| kind.name == name && kind.domain == domain)
}
