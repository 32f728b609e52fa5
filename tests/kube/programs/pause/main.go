// Copyright The sweetpoint authors
// SPDX-License-Identifier: Apache-2.0

// The program of a pod's sandbox: waits for a signal to end. The sandbox's image is made of it,
// because the tests use no registry.
package main

import (
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, syscall.SIGINT, syscall.SIGTERM)
	<-ended
}
