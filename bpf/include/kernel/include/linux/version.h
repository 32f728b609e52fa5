// SPDX-License-Identifier: (Apache-2.0 OR GPL-2.0-only)
// Programs are checked by trying, never by version; bcc only wants the macro to exist.
#pragma once
#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + (c))
#define LINUX_VERSION_CODE KERNEL_VERSION(5, 15, 0)
