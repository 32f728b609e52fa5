// SPDX-License-Identifier: (Apache-2.0 OR GPL-2.0-only)
// bcc takes a directory for a kernel tree if this file exists, and includes the file first.
#pragma once
#define CONFIG_BPF_SYSCALL 1
#define CONFIG_64BIT 1
