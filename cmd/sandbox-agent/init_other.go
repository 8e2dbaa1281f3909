//go:build !linux

package main

import "errors"

func runAsInit(_, _ []string) (int, error) {
	return 1, errors.New("containers need Linux")
}
