//! What the settings of the task `table` do.

use crate::tasks::init;

/// Each setting as it is typed, and one line.
pub(super) const HELP: &[(&str, &str)] = &[
    ("target=COLUMN", "the column to predict"),
    (
        "positive=CLASS",
        "of two classes, the one that F1 and AUC describe (default: one like yes or 1, or the rarer)",
    ),
    (
        "columns.NAME=number|category|text|date|day-first|month-first|year-first|unix|excel|any-case|ignore",
        "how to read a column, where the guess is wrong",
    ),
    (
        "missing=[\"\",\"NA\"]",
        "cells that mean that a value is missing; among numbers and dates also -, none, #N/A and their like",
    ),
    (
        "bad_rows=fail|skip",
        "stop at rows that cannot be used, or go on without them",
    ),
    (
        "split_column=COLUMN",
        "a column that says train, validation or test (default: one that looks like it, or a draw by row number)",
    ),
    (
        "split_by=COLUMN",
        "keep rows with the same value, such as a customer, in one part",
    ),
    (
        "split_time=COLUMN",
        "test on the latest rows by this column of dates or numbers",
    ),
    (
        "log=auto|on|off",
        "learn the logarithm of a number (default: if it is positive and few values are very large)",
    ),
    (
        "threshold=X|f1",
        "of two classes: answer the positive one above this probability (default 0.5); f1: above the one with the best F1 on the validation rows",
    ),
    (
        "weight=COLUMN",
        "a column that says how much each row counts in the loss",
    ),
    (
        "class_weights=off|balanced",
        "let all classes weigh the same in the loss, however rare",
    ),
    (
        "model=mlp|linear",
        "networks and a linear model, or the linear model alone",
    ),
    (
        "time=10m",
        "as many rounds as fit into this time on the founder's machine, instead of rounds or epochs",
    ),
    (
        "trials=N",
        "a search: the usual networks and N-1 with drawn settings side by side; validation rows choose among them",
    ),
    (
        "hidden=N-N",
        "one network with these units in its hidden layers, instead of several",
    ),
    (
        "bins=true|false",
        "whether the one model also reads numbers in bins",
    ),
    ("rate=X", "the one model's learning rate, times lr"),
    (
        "dropout=X",
        "share of the one network's hidden units that each row leaves out",
    ),
    ("l2=X", "adds X times the one model's squared weights to its loss"),
    (
        "width=PERCENT",
        "hidden units of the networks, of those that they usually have",
    ),
    init::HELP,
];
