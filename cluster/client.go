package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"bivouac.dev/bivouac/cluster/peernet"
	"bivouac.dev/bivouac/fsm"
)

// PeerClient calls one node over its peer port, with a node's certificate. Programs beside a node
// use it, such as `bivouac keys bootstrap` before any API key exists.
type PeerClient struct {
	address string
	client  *peernet.Client
}

// NewPeerClient loads the certificate and connects on the first call. address is the peer address
// of any node.
func NewPeerClient(tls peernet.TLSFiles, address string) (*PeerClient, error) {
	creds, err := peernet.LoadCredentials(tls, "", slog.New(slog.DiscardHandler))
	if err != nil {
		return nil, err
	}
	return &PeerClient{address, peernet.NewClient(creds)}, nil
}

// Propose proposes cmd through the node, with the errors of Node.Propose. CodeNoLeader also means
// that the node was not reached.
func (c *PeerClient) Propose(ctx context.Context, cmd fsm.Command) (fsm.Result, error) {
	_, data, proof, refusal := encodeFor(ctx, cmd, false) // the cluster's version is not known here
	if refusal != nil {
		return fsm.Result{}, refusal
	}
	var response proposeResponse
	if err := c.ask(ctx, callPropose, withProof(data, proof), &response); err != nil {
		return fsm.Result{}, err
	}
	if response.Error != nil {
		return response.Result, response.Error
	}
	return response.Result, nil
}

// RemoveServer is Node.RemoveServer through the node, for `bivouac operator remove`. CodeNoLeader
// also means that the node was not reached.
func (c *PeerClient) RemoveServer(ctx context.Context, name string, o RemoveOptions) error {
	request := removeRequest{name, o}
	data, err := withProvenCaller(ctx, request, request.proven())
	if err != nil {
		return fsm.Errorf(fsm.CodeInternal, "%v", err)
	}
	var response changeResponse
	if err := c.ask(ctx, callRemove, data, &response); err != nil {
		return err
	}
	if response.Error != nil {
		return response.Error
	}
	return nil
}

// ask makes a call that changes state and decodes its JSON response. Its errors are *fsm.Error.
func (c *PeerClient) ask(ctx context.Context, call string, request []byte, response any) error {
	raw, err := c.client.Call(ctx, c.address, call, request)
	if errors.Is(err, peernet.ErrNotSent) {
		return fsm.Errorf(fsm.CodeNoLeader, "%v; nothing was done", err)
	}
	if err != nil {
		return fsm.Errorf(fsm.CodeOutcomeUnknown, "%v", err)
	}
	if err := json.Unmarshal(raw, response); err != nil {
		return fsm.Errorf(fsm.CodeOutcomeUnknown, "reading the node's answer: %v", err)
	}
	return nil
}

// Close closes the connection.
func (c *PeerClient) Close() { c.client.Close() }

// Answering asks the members, and the addresses of RetryJoin, for a second at most, with the files
// of a stopped node that was self. It lists those that answer as members of a cluster.
func Answering(ctx context.Context, cfg Config, self Server, members []Server) ([]string, error) {
	creds, err := peernet.LoadCredentials(cfg.TLS, "", cfg.Logger)
	if err != nil {
		return nil, err
	}
	client := peernet.NewClient(creds)
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	asked := map[string]string{} // by address, the id that is expected there
	for _, a := range cfg.RetryJoin {
		asked[a] = ""
	}
	for _, m := range members {
		if m.ID != self.ID {
			asked[m.Address] = m.ID
		}
	}
	body, err := json.Marshal(helloRequest{Member: member{ID: self.ID, Name: self.Name, Address: self.Address}})
	if err != nil {
		return nil, fmt.Errorf("encoding %s: %w", callHello, err)
	}
	var mu sync.Mutex
	var found []string
	var wg sync.WaitGroup
	for address, id := range asked {
		wg.Go(func() {
			var answer helloResponse
			raw, err := client.Call(ctx, address, callHello, body)
			if err != nil || json.Unmarshal(raw, &answer) != nil || answer.Member.ID != id && !answer.Formed {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			found = append(found, fmt.Sprintf("%s at %s (%s)", answer.Member.Name, address, answer.Member.ID))
		})
	}
	wg.Wait()
	return found, nil
}

// callChecksum asks a node for the checksum of its store. It reads the whole state: it is for
// end-to-end tests and for operators.
const callChecksum = "checksum"

// checksumResponse is the checksum of one node's state.
type checksumResponse struct {
	Index    uint64 `json:"index"`
	Checksum string `json:"checksum"`
}

// handleChecksum answers callChecksum.
func (n *Node) handleChecksum() (checksumResponse, error) {
	index, sum := n.store.Snapshot().Checksum()
	return checksumResponse{Index: index, Checksum: sum}, nil
}

// Checksum returns the node's index and the hex SHA-256 of its whole state at that index. Nodes at
// the same index must have the same checksum. A node without a leader answers too.
func (c *PeerClient) Checksum(ctx context.Context) (index uint64, sum string, err error) {
	raw, err := c.client.Call(ctx, c.address, callChecksum, []byte("{}"))
	if err != nil {
		return 0, "", err
	}
	var response checksumResponse
	if err := json.Unmarshal(raw, &response); err != nil {
		return 0, "", fmt.Errorf("reading the node's checksum: %w", err)
	}
	return response.Index, response.Checksum, nil
}
