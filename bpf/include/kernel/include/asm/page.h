// SPDX-License-Identifier: (Apache-2.0 OR GPL-2.0-only)
#pragma once
#define PAGE_SIZE 4096
