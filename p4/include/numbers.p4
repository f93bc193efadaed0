/* Sequence numbers of receivers that do not get every layer: the parts that SEQUENCE chooses. */
/* SPDX-License-Identifier: Apache-2.0 */

#if S_LM
#include "sequence.p4"
#elif S_LR
#include "tracks.p4"
#include "sequence_state.p4"
#endif
