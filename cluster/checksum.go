package cluster

import (
	"context"
	"encoding/json"
	"fmt"
)

// callChecksum asks one node for the checksum of its own store. It reads the
// whole state, so it is for drills, and for an operator in doubt.
const callChecksum = "checksum"

// checksumResponse is one node's state, as one number.
type checksumResponse struct {
	Index    uint64 `json:"index"`
	Checksum string `json:"checksum"`
}

// handleChecksum answers callChecksum.
func (n *Node) handleChecksum() (checksumResponse, error) {
	index, sum := n.store.Snapshot().Checksum()
	return checksumResponse{Index: index, Checksum: sum}, nil
}

// Checksum gives the asked node's index and the SHA-256, in hex, of its whole
// state there: nodes at an equal index must give an equal checksum. It asks
// nobody else, so it answers on a node without a leader too.
func (c *PeerClient) Checksum(ctx context.Context) (index uint64, sum string, err error) {
	raw, err := c.client.call(ctx, c.address, callChecksum, []byte("{}"))
	if err != nil {
		return 0, "", err
	}
	var response checksumResponse
	if err := json.Unmarshal(raw, &response); err != nil {
		return 0, "", fmt.Errorf("reading the node's checksum: %w", err)
	}
	return response.Index, response.Checksum, nil
}
