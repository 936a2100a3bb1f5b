//! The stock page: the stock tasks in a tab.

annulus_browser::main!(
    annulus::tasks::digits::Digits,
    annulus::tasks::gpt::Gpt,
    annulus::tasks::graph::ModelFile,
    annulus::tasks::table::TableTask,
    annulus::tasks::images::Images,
    annulus::tasks::pytorch::PyTorch
);
