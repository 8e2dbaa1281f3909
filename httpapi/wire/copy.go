package wire

// Copy is the newest copy of a workspace in the operator API.
type Copy struct {
	// Cluster and Sandbox name its folder in the store of copies, ID the copy in it.
	Cluster string `json:"cluster"`
	Sandbox string `json:"sandbox"`
	ID      string `json:"id"`
	Owner   string `json:"owner"`
	// Sum is the SHA-256 of its manifest as it is in the store, in hex.
	Sum   string `json:"sum"`
	At    Time   `json:"at"`
	Files int64  `json:"files"`
	// Bytes is the content of all files.
	Bytes int64 `json:"bytes"`
}
