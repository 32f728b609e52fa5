// Copyright The sweetpoint authors
// SPDX-License-Identifier: Apache-2.0

// The API server of the release in go.mod, unchanged: the tests' own build of it, because it is
// published neither as a Go command that can be installed nor by the distribution.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() {
	os.Exit(cli.Run(app.NewAPIServerCommand()))
}
