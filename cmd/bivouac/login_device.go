package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"time"

	"bivouac.dev/bivouac/httpapi/client"
	"bivouac.dev/bivouac/httpapi/wire"
)

// errNoDevices says that the nodes let no browser allow a terminal.
var errNoDevices = errors.New("no browser can allow this terminal")

// deviceKey has a person with a browser allow this terminal (RFC 8628), and returns the key that it then
// has for its own.
func (p *program) deviceKey(ctx context.Context, to login) (string, error) {
	to.APIKey = ""
	c, err := to.client()
	if err != nil {
		return "", err
	}
	host, _ := os.Hostname() // the page shows the address in any case
	asked, err := c.Send(ctx, http.MethodPost, "/oauth/device/authorize",
		map[string]string{"name": "bivouac on " + cmp.Or(host, "a terminal")})
	if err != nil {
		return "", err
	}
	// A node without the page, one without the flow, a cluster at an older protocol version.
	switch asked.Status {
	case http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusConflict:
		return "", errNoDevices
	}
	var codes wire.DeviceCodes
	if err := asked.Decode(&codes); err != nil {
		return "", err
	}
	fmt.Fprintf(p.stderr, "Open this address in a browser that is signed in, compare the code, and allow it:\n\n  %s\n\n"+
		"The code is %s, for %s. (\"bivouac login --with-key\" asks for an API key instead.)\n",
		printable(codes.VerificationURIComplete), printable(codes.UserCode), time.Duration(codes.ExpiresIn)*time.Second)
	ctx, cancel := context.WithTimeout(ctx, time.Duration(codes.ExpiresIn)*time.Second)
	defer cancel()
	var key string
	err = withProgress(ctx, p.stderr, "waiting to be allowed", func(ctx context.Context) (err error) {
		key, err = awaitDevice(ctx, c, codes)
		return err
	})
	if errors.Is(err, context.DeadlineExceeded) {
		err = errors.New("nobody has allowed this terminal in time: log in again")
	}
	return key, err
}

// awaitDevice asks for the key until a user has allowed this terminal. A node that fails ends no login: a
// lost answer is asked for again (RFC 8628, 3.5).
func awaitDevice(ctx context.Context, c *client.Client, codes wire.DeviceCodes) (string, error) {
	for wait := time.Duration(max(codes.Interval, 1)) * time.Second; ; {
		select {
		case <-ctx.Done():
			return "", context.Cause(ctx)
		case <-time.After(wait):
		}
		got, err := c.Send(ctx, http.MethodPost, "/oauth/device/token", map[string]string{
			"grant_type": "urn:ietf:params:oauth:grant-type:device_code", "device_code": codes.DeviceCode,
		})
		if err != nil {
			continue
		}
		if got.OK() {
			var token wire.DeviceToken
			if err := json.Unmarshal(got.Body, &token); err != nil || token.AccessToken == "" {
				continue
			}
			return token.AccessToken, nil
		}
		var refused wire.DeviceError
		_ = json.Unmarshal(got.Body, &refused) // another body is no reason of the flow
		switch {
		case refused.Error == "authorization_pending" || got.Status >= http.StatusInternalServerError:
		case refused.Error == "slow_down" || got.Status == http.StatusTooManyRequests:
			wait += time.Second
		case refused.Error == "expired_token":
			return "", errors.New("nobody has allowed this terminal in time: log in again")
		case refused.Error == "access_denied":
			return "", errors.New("this terminal may not log in: the key that allowed it is no longer good, or its user " +
				"has too many")
		default:
			return "", errors.New(got.String())
		}
	}
}
