package main

import (
	"context"
	"net/http"

	"github.com/spf13/cobra"

	"bivouac.dev/bivouac/httpapi/client"
	"bivouac.dev/bivouac/httpapi/session"
	"bivouac.dev/bivouac/httpapi/wire"
)

// signInLink is an address that signs one browser in.
type signInLink struct {
	URL       string    `json:"url"`
	ExpiresAt wire.Time `json:"expires_at"`
}

// newSignInLink asks a node for a link for the user of the client's key. The link leads to the node
// that answered: another one of the client's addresses may be down.
func newSignInLink(ctx context.Context, c *client.Client) (signInLink, error) {
	var made wire.SignInCode
	from, err := c.CallFrom(ctx, http.MethodPost, "/api/login/codes", nil, &made)
	if err != nil {
		return signInLink{}, err
	}
	return signInLink{URL: session.Link(from, made.Code), ExpiresAt: made.ExpiresAt}, nil
}

func (p *program) uiCommand() *cobra.Command {
	var api apiFlags
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Print an address that signs a browser in",
		Long: `Print an address that signs one browser in as the user of the API key, once and
within ten minutes. Anybody who has the address can use it until then. The page
says whose session it opens before it does.

--address is the node as the browser reaches it: https, or http on the node's
own machine. Of several addresses it is the one that answers.`,
		Example: `  export BIVOUAC_API_KEY=$(cat my.key)
  bivouac ui
  bivouac ui --address https://bivouac.example.org`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.client(&api)
			if err != nil {
				return err
			}
			var link signInLink
			err = withProgress(cmd.Context(), p.stderr, "waiting for "+c.Address, func(ctx context.Context) error {
				link, err = newSignInLink(ctx, c)
				return err
			})
			if err != nil {
				return err
			}
			return p.done(&api, link, "%s", link.URL)
		},
	}
	api.register(cmd)
	api.registerJSON(cmd)
	return cmd
}
