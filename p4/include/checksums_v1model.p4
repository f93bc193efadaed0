/* What the checksum units of Tofino do, as controls for BMv2. NUMBER: nothing, or a comma and the sequence number of a copy. */
/* SPDX-License-Identifier: Apache-2.0 */

/* Nothing is verified; a checksum that was wrong stays wrong. */
control VerifyNothing(inout headers_t hdr, inout metadata_t md) {
    apply {
    }
}

/* What Tofino's parser does with its checksum units: take off the checksums what may change. The
 * complement of a sum is its negative. */
control TakeChecksums(inout headers_t hdr, inout metadata_t md) {
    apply {
        if (hdr.ipv4.isValid()) {
            hash(md.ipv4_residual, HashAlgorithm.csum16, 16w0,
                 {hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.dscp, hdr.ipv4.ecn, hdr.ipv4.total_len, hdr.ipv4.identification,
                  hdr.ipv4.flags, hdr.ipv4.frag_offset, hdr.ipv4.ttl, hdr.ipv4.protocol, hdr.ipv4.checksum,
                  hdr.ipv4.src_addr, hdr.ipv4.dst_addr}, 32w0x10000);
        }
        if (md.checksummed == 1) {
            if (hdr.ipv4.isValid()) {
                hash(md.udp_residual, HashAlgorithm.csum16, 16w0,
                     {hdr.ipv4.src_addr, hdr.ipv4.dst_addr, hdr.udp.src_port, hdr.udp.dst_port, hdr.udp.checksum NUMBER}, 32w0x10000);
            } else {
                hash(md.udp_residual, HashAlgorithm.csum16, 16w0,
                     {hdr.ipv6.src_addr, hdr.ipv6.dst_addr, hdr.udp.src_port, hdr.udp.dst_port, hdr.udp.checksum NUMBER}, 32w0x10000);
            }
        }
    }
}

/* What Tofino's deparser does with its checksum units. */
control GiveChecksums(inout headers_t hdr, inout metadata_t md) {
    apply {
        if (hdr.ipv4.isValid()) {
            hash(hdr.ipv4.checksum, HashAlgorithm.csum16, 16w0,
                 {hdr.ipv4.version, hdr.ipv4.ihl, hdr.ipv4.dscp, hdr.ipv4.ecn, hdr.ipv4.total_len, hdr.ipv4.identification,
                  hdr.ipv4.flags, hdr.ipv4.frag_offset, hdr.ipv4.ttl, hdr.ipv4.protocol,
                  hdr.ipv4.src_addr, hdr.ipv4.dst_addr, md.ipv4_residual}, 32w0x10000);
        }
        if (md.checksummed == 1) {
            if (hdr.ipv4.isValid()) {
                hash(hdr.udp.checksum, HashAlgorithm.csum16, 16w0,
                     {hdr.ipv4.src_addr, hdr.ipv4.dst_addr, hdr.udp.src_port, hdr.udp.dst_port NUMBER, md.udp_residual}, 32w0x10000);
            } else {
                hash(hdr.udp.checksum, HashAlgorithm.csum16, 16w0,
                     {hdr.ipv6.src_addr, hdr.ipv6.dst_addr, hdr.udp.src_port, hdr.udp.dst_port NUMBER, md.udp_residual}, 32w0x10000);
            }
            if (hdr.udp.checksum == 0) {
                hdr.udp.checksum = 0xffff;
            }
        }
    }
}

/* V1model computes checksums here from whole fields; they are already made. */
control ComputeNothing(inout headers_t hdr, inout metadata_t md) {
    apply {
    }
}
