//! Conferences without I/O and without a clock: time comes in, rows of tables and RTCP go out.
//!
//! [`book`] is the one owner of conferences: events go in, decisions come out. It is made of these:
//!
//! | from | by | to |
//! | --- | --- | --- |
//! | joins, leaves, latched sources, levels | [`membership`] | a [`trees::Layout`] |
//! | who plays one stream | [`mixing`] ([`jobs`]) | what a mixer gets, and whom its mixes go to |
//! | who sends video, what mixers say of it | [`tiles`] | which tile is whose, and which mixer makes it |
//! | who gets tiled streams | [`tiling`] | who gets whose video |
//! | a layout | [`migration`] ([`trees`], [`capacity`]) | writes of planned rows ([`tables`]), one after the other |
//! | layouts of all conferences | [`planner`] | the steps of a round, and what the data plane holds |
//! | planned rows | [`rows`] with [`rewriting`] and [`payload_types`] | rows with addresses; [`diff`]: the steps to them |
//! | receivers' RTCP | [`adaptation`] ([`downlink`], [`best_downlink`], [`policy`]) | levels, and what each sender hears |
//! | senders' RTCP, requests | [`reports`], [`key_frames`] | what goes on at once |
//! | copies of packets, NACKs | [`repair`] ([`packets`], [`sequence`]) | packets again, for who asked |
#![forbid(unsafe_code)]

pub mod account;
pub mod adaptation;
mod allocation;
pub mod best_downlink;
pub mod book;
pub mod capacity;
pub mod diff;
pub mod downlink;
pub mod frames;
pub mod ice;
pub mod jobs;
pub mod key_frames;
pub mod membership;
pub mod migration;
pub mod mixer;
pub mod mixing;
pub mod packets;
pub mod participant;
pub mod payload_types;
mod placement;
pub mod planner;
pub mod policy;
pub mod repair;
pub mod reports;
pub mod rewriting;
pub mod routes;
pub mod rows;
pub mod sequence;
pub mod tables;
pub mod tiles;
pub mod tiling;
pub mod trees;

pub use allocation::{Numbers, Reserved};
