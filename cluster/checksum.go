package cluster

import (
	"context"
	"encoding/json"
	"fmt"
)

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
