//! Peers as users run them: real processes, real links, real tabs. And the devices that compute for them.
//!
//! One program for all of it, because each program that is linked with Burn costs seconds and 100 MB. Every test takes a
//! *turn* (`common::turn`): most run beside another, those that measure or share the process's devices run alone.

mod budget;
mod chromium;
mod comfort;
mod common;
mod data;
mod data_in_tabs;
mod device_arithmetic;
mod devices;
mod direct;
mod elsewhere;
mod exported;
#[cfg(unix)]
mod files;
mod firefox;
mod floods;
mod graph;
mod graph_in_tabs;
mod hostile;
mod images;
mod keepers;
mod kernels_in_browser;
mod learning;
mod meeting;
mod nearby;
mod program;
mod pytorch;
mod refusals;
mod rehearsal;
mod resume;
mod ring;
mod served;
mod slow_links;
mod slurm;
mod smaller;
mod split;
mod split_in_tabs;
mod stages;
mod tab_link;
mod table;
mod table_in_tabs;
mod tabs;
mod tabs_asleep;
mod tabs_from_elsewhere;
mod tabs_in_firefox;
mod task_layers;
mod tickets;
mod writing;

#[path = "../../images/src/testing.rs"]
#[allow(dead_code, missing_docs, reason = "shared with the tests of annulus-images")]
mod png;
