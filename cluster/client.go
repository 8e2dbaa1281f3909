package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"

	"bivouac.dev/bivouac/fsm"
)

// PeerClient asks one node over its peer port, with a node's certificate. It
// is for programs beside a node, such as `bivouac keys bootstrap`, before any
// API key exists.
type PeerClient struct {
	address string
	client  *callClient
}

// NewPeerClient loads the certificate; it connects on the first call. address
// is the peer address of any node.
func NewPeerClient(tls TLSConfig, address string) (*PeerClient, error) {
	creds, err := loadCredentials(tls, slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	return &PeerClient{address, newCallClient(creds)}, nil
}

// Propose has the asked node propose cmd; its errors are those of
// Node.Propose. CodeNoLeader also means that the node was not reached.
func (c *PeerClient) Propose(ctx context.Context, cmd fsm.Command) (fsm.Result, error) {
	if err := validate(cmd); err != nil {
		return fsm.Result{}, err
	}
	data, err := cmd.Encode()
	if err != nil {
		return fsm.Result{}, fsm.Errorf(fsm.CodeInternal, "%v", err)
	}
	raw, err := c.client.call(ctx, c.address, callPropose, data)
	if errors.Is(err, errNotSent) {
		return fsm.Result{}, fsm.Errorf(fsm.CodeNoLeader, "%v; nothing was done", err)
	}
	if err != nil {
		return fsm.Result{}, fsm.Errorf(fsm.CodeOutcomeUnknown, "%v", err)
	}
	var response proposeResponse
	if err := json.Unmarshal(raw, &response); err != nil {
		return fsm.Result{}, fsm.Errorf(fsm.CodeOutcomeUnknown, "reading the node's answer: %v", err)
	}
	if response.Error != nil {
		return response.Result, response.Error
	}
	return response.Result, nil
}

// RemoveServer is Node.RemoveServer, through the asked node; it is for
// `bivouac operator remove`. CodeNoLeader also means that the node was not
// reached.
func (c *PeerClient) RemoveServer(ctx context.Context, name string, o RemoveOptions) error {
	data, err := json.Marshal(removeRequest{name, o})
	if err != nil {
		return fsm.Errorf(fsm.CodeInternal, "%v", err)
	}
	raw, err := c.client.call(ctx, c.address, callRemove, data)
	if errors.Is(err, errNotSent) {
		return fsm.Errorf(fsm.CodeNoLeader, "%v; nothing was done", err)
	}
	if err != nil {
		return fsm.Errorf(fsm.CodeOutcomeUnknown, "%v", err)
	}
	var response changeResponse
	if err := json.Unmarshal(raw, &response); err != nil {
		return fsm.Errorf(fsm.CodeOutcomeUnknown, "reading the node's answer: %v", err)
	}
	if response.Error != nil {
		return response.Error
	}
	return nil
}

// Close drops the connection.
func (c *PeerClient) Close() { c.client.close() }
