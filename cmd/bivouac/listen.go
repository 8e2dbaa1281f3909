package main

import (
	"errors"
	"fmt"
	"net"
)

// listen binds an HTTP address. Its error is one line with the address.
func listen(address string) (net.Listener, error) {
	ln, err := net.Listen("tcp", address)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) {
			err = op.Err
		}
		return nil, fmt.Errorf("listening on %s: %w", address, err)
	}
	return ln, nil
}
