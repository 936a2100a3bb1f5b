//! The protocol in virtual time: stories written by hand, seeded worlds, and what strangers may send.

mod accounts;
mod applying;
mod aside;
mod back;
mod clocks;
mod faults;
mod feedback;
mod floods;
mod forged;
mod guests;
mod hostile;
mod influence;
mod line;
mod means;
mod meeting;
mod newcomer;
mod planted;
mod revocations;
mod sim;
mod stories;
mod story;
mod tickets;
mod told;
