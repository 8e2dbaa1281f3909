package operators

import (
	"bivouac.dev/bivouac/httpapi/request"
	"bivouac.dev/bivouac/httpapi/response"
	"bivouac.dev/bivouac/httpapi/wire"
)

// CopyList handles GET /api/v1/operator/copies: the newest copy of each workspace.
func (s *Server) CopyList(c *request.Call) (response.Response, error) {
	v, err := c.View()
	if err != nil {
		return response.Response{}, err
	}
	var items []wire.Copy
	for sb := range v.AllSandboxes() {
		if sb.Copy != nil {
			items = append(items, wire.Copy{
				Cluster: v.ClusterID(), Sandbox: sb.ID, Owner: sb.UserID, ID: sb.Copy.ID, Sum: sb.Copy.Sum,
				At: wire.At(sb.Copy.At), Files: sb.Copy.Files, Bytes: sb.Copy.Bytes,
			})
		}
	}
	return response.OK(wire.NewPage(items, ""))
}
