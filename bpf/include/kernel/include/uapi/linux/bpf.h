// SPDX-License-Identifier: (Apache-2.0 OR GPL-2.0-only)
// Empty on purpose: bcc brings its own definitions.
#pragma once
