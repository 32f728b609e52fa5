// SPDX-License-Identifier: (Apache-2.0 OR GPL-2.0-only)
// Registers are not read by any of our programs.
#pragma once
struct pt_regs;
