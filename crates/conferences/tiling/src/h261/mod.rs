//! H.261 (ITU-T H.261 03/93, RFC 4587): four QCIF pictures become one CIF picture.
//!
//! | from | by | to |
//! | --- | --- | --- |
//! | a source's packets | [`assembler`] | pictures, some with parts missing |
//! | a picture's bits | [`picture`] | groups of blocks and where their macroblocks begin |
//! | pictures of four tiles | [`mosaic`] | the bits of a CIF picture, and where they may be cut |
//! | that | [`packets`] ([`payload`]) | payloads of packets |

pub mod assembler;
mod codes;
pub mod mosaic;
pub mod packets;
pub mod payload;
pub mod picture;
