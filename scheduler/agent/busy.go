package agent

import "context"

// Busy reports whether a conversation runs on the server. The scheduler's idle
// policy asks before it pauses a sandbox, because not every server counts an
// agent at work in its idle time.
func (c *Client) Busy(ctx context.Context, baseURL, key string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.CallTimeout)
	defer cancel()
	ids, err := c.running(ctx, baseURL, key)
	if len(ids) > 0 {
		return true, nil
	}
	return false, err
}
