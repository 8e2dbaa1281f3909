package agent

import "context"

// Busy reports whether a conversation is running on the server. The scheduler's idle policy calls
// it before it pauses a sandbox, because some servers count a working agent as idle.
func (c *Client) Busy(ctx context.Context, baseURL, key string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.CallTimeout)
	defer cancel()
	ids, err := c.running(ctx, baseURL, key)
	if len(ids) > 0 {
		return true, nil
	}
	return false, err
}
