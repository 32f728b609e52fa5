// SPDX-License-Identifier: (Apache-2.0 OR GPL-2.0-only)
// Features are detected by loading, never by version; bcc only needs the macro to exist.
#pragma once
#define KERNEL_VERSION(a, b, c) (((a) << 16) + ((b) << 8) + (c))
#define LINUX_VERSION_CODE KERNEL_VERSION(5, 15, 0)
